use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::RedisError;
use tokio::time;

use super::{
    address::wrong,
    connection::Known,
    route::Handle,
    server::{CONNECT_TIMEOUT, Server},
};
use crate::error::Error;

/// Sentinels that know who is the master.
#[derive(Clone)]
pub(in crate::redis) struct Sentinels {
    sentinels: Vec<Server>,
    /// What any server of theirs is spoken to with: user, password, database, certificates.
    server: Server,
    master: String,
    /// The one that answered last, which is asked first: a dead one costs time.
    first: Arc<AtomicUsize>,
}

impl Sentinels {
    /// Reads `[[user]:password@]host[:port],.../master-name[/database]`, and a query for the sentinels' own user.
    pub(super) fn read(url: &str, scheme: &str, rest: &str) -> Result<Self, Error> {
        let form = "write redis+sentinel://[[user]:password@]host[:port],host[:port]/master-name[/database]";
        let cannot = |what: &str| wrong(url, &format!("{what}; {form}"));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user_info, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(cannot("the name of the master is missing"));
        }
        let (mut user, mut password) = ("", "");
        for (key, value) in
            query.split('&').filter_map(|pair| pair.split_once('=').or((!pair.is_empty()).then_some((pair, ""))))
        {
            match key {
                "sentinel_user" => user = value,
                "sentinel_pass" => password = value,
                _ => return Err(cannot("the query may set sentinel_user and sentinel_pass, no more")),
            }
        }
        if [user, password].iter().any(|value| value.contains(['/', '@', ':', '#', '?', '[', ']'])) {
            return Err(cannot("sentinel_user and sentinel_pass must be percent-encoded"));
        }
        let own = if user.is_empty() && password.is_empty() { String::new() } else { format!("{user}:{password}@") };
        // An address of the usual form: one reader decodes all.
        let read = |user_info: &str, host: &str, database: &str| {
            Server::read(&format!("{scheme}://{user_info}{host}/{database}"))
                .map_err(|error| cannot("cannot be read").with_source(error))
        };
        let with_port = |host: &str| {
            let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
            if after.contains(':') { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") }
        };
        let sentinels = hosts.split(',').map(|host| read(&own, &with_port(host), "")).collect::<Result<_, _>>()?;
        let user_info = if user_info.is_empty() { String::new() } else { format!("{user_info}@") };
        let server = read(&user_info, "localhost", database)?;
        Ok(Self { sentinels, server, master: master.to_owned(), first: Arc::default() })
    }

    /// Returns the same with the addresses changed.
    #[cfg(feature = "tls")]
    pub(super) fn each_server(mut self, change: impl Fn(&Server) -> Result<Server, Error>) -> Result<Self, Error> {
        self.server = change(&self.server)?;
        self.sentinels = self.sentinels.iter().map(change).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Connects to the master, as the first sentinel knows it whose word proves true.
    pub(super) async fn master(&self, known: &Arc<Known>) -> Result<Handle, Error> {
        let first = self.first.load(Ordering::Relaxed);
        let mut why = Vec::new();
        for at in (0..self.sentinels.len()).map(|i| (first + i) % self.sentinels.len()) {
            let sentinel = &self.sentinels[at];
            match self.through(sentinel, known).await {
                Ok(connection) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => why.push(format!("sentinel {sentinel}: {error}")),
            }
        }
        let what = format!("cannot connect to the redis master `{}`", self.master.escape_debug());
        Err(Error::store(what).with_source(why.join("; ")))
    }

    /// Waits until a sentinel names another master.
    ///
    /// A master that was replaced by hand takes writes for ten seconds more before it is made a replica, and what is
    /// charged there is lost.
    pub(super) async fn moved(&self, master: &(String, u16)) {
        let mut at = self.first.load(Ordering::Relaxed);
        let mut sentinel = None;
        loop {
            time::sleep(LOOK_PERIOD).await;
            let look = async {
                let connection = match sentinel.take() {
                    Some(connection) => connection,
                    None => self.sentinels[at].connect_once().await?,
                };
                self.ask(sentinel.insert(connection)).await
            };
            match time::timeout(ASK_TIMEOUT, look).await {
                Ok(Ok(Some(now))) if now != *master => return,
                Ok(Ok(_)) => {}
                _ => {
                    sentinel = None;
                    at = (at + 1) % self.sentinels.len();
                }
            }
        }
    }

    async fn through(&self, sentinel: &Server, known: &Arc<Known>) -> Result<Handle, String> {
        let look = async { self.ask(&mut sentinel.connect_once().await?).await };
        let said = time::timeout(ASK_TIMEOUT, look).await;
        let (host, port) = match said {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => return Err("knows no master of that name".to_owned()),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no answer within {ASK_TIMEOUT:?}")),
        };
        let master = format!("{host}:{port}");
        let server = self.server.at(host.clone(), port);
        let mut connection = server.connect(known).await.map_err(|error| format!("master {master}: {error}"))?;
        // A sentinel may not have heard yet, and a replica would answer each call with READONLY.
        let question = redis::cmd("ROLE");
        let role = question.query_async::<Vec<redis::Value>>(&mut connection);
        match time::timeout(CONNECT_TIMEOUT, role).await {
            Ok(Ok(role)) => match role.first().map(redis::from_redis_value_ref::<String>) {
                Some(Ok(role)) if role == "master" => {
                    let _ = known.master.set((host, port));
                    Ok(connection)
                }
                _ => Err(format!("{master} is no master")),
            },
            Ok(Err(error)) => Err(format!("cannot ask {master} for its role: {error}")),
            Err(_) => Err(format!("{master} does not tell its role within {CONNECT_TIMEOUT:?}")),
        }
    }

    async fn ask(&self, sentinel: &mut Handle) -> Result<Option<(String, u16)>, RedisError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master).query_async(sentinel).await
    }
}

const DEFAULT_PORT: u16 = 26_379;

/// How often it is asked whether the master is still the one.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A sentinel is near, and there are others.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
