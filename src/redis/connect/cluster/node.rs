use std::sync::{Arc, Mutex, PoisonError};

use super::seeds::Seeds;
use crate::redis::{
    connect::{Connections, Route, server::Server},
    default_names,
};

/// A server of a cluster, and the connection to it.
pub(super) struct Node {
    address: String,
    /// Which part of the store it is.
    part: u32,
    server: Server,
    pub(super) connections: Connections,
}

/// The servers that are in use, by their addresses.
pub(super) struct Nodes {
    pub(super) seeds: Seeds,
    known: Mutex<Vec<Arc<Node>>>,
}

impl Node {
    /// Returns `host:port`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn host(&self) -> &str {
        self.server.host_and_port().0
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the bit that stands for it among the parts of the store; more nodes than bits share some.
    pub(super) fn part(&self) -> u64 {
        // The lowest is for the cluster as a whole.
        2 << (self.part % 63)
    }
}

impl Nodes {
    pub(super) fn new(seeds: Seeds) -> Self {
        Self { seeds, known: Mutex::default() }
    }

    /// Returns the node at an address, which is made if it is new; nothing is connected to yet.
    pub(super) fn at(&self, host: &str, port: u16) -> Arc<Node> {
        let address = format!("{host}:{port}");
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = known.iter().find(|node| node.address == address) {
            return Arc::clone(node);
        }
        let part = (0..).find(|part| known.iter().all(|node| node.part != *part)).expect("there are enough numbers");
        let server = self.seeds.node_at(host, port);
        // Each decision is sent by the lane of its slot; none stands in line for a node.
        let connections = Connections::new(Route::Server(server.clone()), default_names());
        let node = Arc::new(Node { address, part, server, connections });
        known.push(Arc::clone(&node));
        node
    }

    /// Reads where an error redirects to; a host that is left out is that of the node that answered (Redis 7).
    pub(super) fn redirected(&self, to: &str, by: &Node) -> Option<Arc<Node>> {
        let (host, port) = to.rsplit_once(':')?;
        let host = if matches!(host, "" | "?") { by.host() } else { host };
        Some(self.at(host, port.parse().ok()?))
    }

    /// Forgets nodes that nobody else holds.
    pub(super) fn tidy(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|node| Arc::strong_count(node) > 1);
    }
}
