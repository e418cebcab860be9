use crate::{
    error::Error,
    redis::connect::{address::wrong, server::Server},
};

/// Where a cluster may be asked for all of itself.
#[derive(Clone)]
pub(in crate::redis) struct Seeds {
    pub(super) servers: Vec<Server>,
}

impl Seeds {
    /// Reads `[[user]:password@]host[:port],...`.
    pub(in crate::redis::connect) fn read(url: &str, scheme: &str, rest: &str) -> Result<Self, Error> {
        let form = format!("write {scheme}+cluster://[[user]:password@]host[:port],host[:port]");
        let cannot = |what: &str| wrong(url, &format!("{what}; {form}"));
        let (user_info, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = hosts.split_once(['/', '?']).unwrap_or((hosts, ""));
        if !matches!(path, "" | "0") {
            return Err(cannot("a cluster has one database, number 0, and no more can be told"));
        }
        let user_info = if user_info.is_empty() { String::new() } else { format!("{user_info}@") };
        let read = |host: &str| match host {
            "" => Err(cannot("a host is missing")),
            // An address of the usual form: one reader decodes all.
            host => Server::read(&format!("{scheme}://{user_info}{host}"))
                .map_err(|error| cannot("cannot be read").with_source(error)),
        };
        Ok(Self { servers: hosts.split(',').map(read).collect::<Result<_, _>>()? })
    }

    /// Returns the same with the addresses changed.
    #[cfg(feature = "tls")]
    pub(in crate::redis::connect) fn each_server(
        mut self,
        change: impl Fn(&Server) -> Result<Server, Error>,
    ) -> Result<Self, Error> {
        self.servers = self.servers.iter().map(change).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Returns how to connect to another node: as to the first one, but for host and port.
    pub(super) fn node_at(&self, host: &str, port: u16) -> Server {
        self.servers[0].at(host.to_owned(), port)
    }
}
