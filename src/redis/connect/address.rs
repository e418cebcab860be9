use super::{route::Route, server::Server};
use crate::error::Error;

/// Reads an address; does no I/O.
pub(in crate::redis) fn read(url: &str) -> Result<Route, Error> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(wrong(url, "the scheme is missing; write redis://host:port"));
    };
    match scheme {
        "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix" => server(url).map(Route::Server),
        "rediss" | "valkeys" => {
            needs_tls(url)?;
            server(url).map(Route::Server)
        }
        "redis+sentinel" | "valkey+sentinel" => sentinels(url, "redis", rest),
        "rediss+sentinel" | "valkeys+sentinel" => {
            needs_tls(url)?;
            sentinels(url, "rediss", rest)
        }
        "redis+cluster" | "valkey+cluster" => cluster(url, "redis", rest),
        "rediss+cluster" | "valkeys+cluster" => {
            needs_tls(url)?;
            cluster(url, "rediss", rest)
        }
        _ => Err(wrong(url, &format!("the scheme `{scheme}` is unknown; write redis://host:port"))),
    }
}

fn needs_tls(url: &str) -> Result<(), Error> {
    if !cfg!(feature = "tls") {
        return Err(wrong(url, "TLS needs the feature `tls` of tollgate; without it, only redis://host:port works"));
    }
    // Other clients know a fragment that turns the checks off.
    if url.contains('#') {
        return Err(wrong(url, "ends in a fragment; write rediss://host:port, the certificate is always checked"));
    }
    Ok(())
}

#[cfg(feature = "sentinel")]
fn sentinels(url: &str, scheme: &str, rest: &str) -> Result<Route, Error> {
    super::sentinel::Sentinels::read(url, scheme, rest).map(Route::Sentinels)
}

#[cfg(not(feature = "sentinel"))]
fn sentinels(url: &str, _: &str, _: &str) -> Result<Route, Error> {
    Err(wrong(url, "Sentinel needs the feature `sentinel` of tollgate; without it, write redis://host:port"))
}

#[cfg(feature = "cluster")]
fn cluster(url: &str, scheme: &str, rest: &str) -> Result<Route, Error> {
    super::cluster::Seeds::read(url, scheme, rest).map(Route::Cluster)
}

#[cfg(not(feature = "cluster"))]
fn cluster(url: &str, _: &str, _: &str) -> Result<Route, Error> {
    Err(wrong(url, "Cluster needs the feature `cluster` of tollgate; without it, write redis://host:port"))
}

/// Reads the address of one server.
fn server(url: &str) -> Result<Server, Error> {
    Server::read(url).map_err(|error| {
        wrong(url, "cannot be read; write redis://[[user]:password@]host[:port][/database]").with_source(error)
    })
}

pub(super) fn wrong(url: &str, what: &str) -> Error {
    Error::invalid(format!("redis address `{}`: {what}", without_password(url)))
}

/// Cuts what may be a secret out of an address, for messages: user and password, and the query.
fn without_password(url: &str) -> String {
    let scheme = url.split_once("://").map_or(String::new(), |(scheme, _)| format!("{scheme}://"));
    let (start, address) = match url.rsplit_once('@') {
        Some((_, host)) => (format!("{scheme}...@"), host),
        None => (String::new(), url),
    };
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    format!("{start}{address}")
}
