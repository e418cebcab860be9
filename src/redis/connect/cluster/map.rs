use std::sync::Arc;

use redis::Value;

use super::{
    node::{Node, Nodes},
    slot::SLOTS,
};

/// Which node serves which slot, as one node told it.
pub(super) struct Map {
    nodes: Vec<Arc<Node>>,
    /// For each slot the place of its node, one up; zero where nobody serves it.
    owners: Box<[u16]>,
}

impl Map {
    /// Reads what `CLUSTER SLOTS` answered; `asked` is the host that did.
    ///
    /// An entry is: first slot, last slot, the master, its replicas; a node is: host, port, and more. A host that is
    /// not told is the one that was asked (Redis, CLUSTER SLOTS).
    pub(super) fn read(answer: &Value, asked: &str, known: &Nodes) -> Result<Self, String> {
        let unreadable = || "answered what CLUSTER SLOTS does not return".to_owned();
        let Value::Array(entries) = answer else { return Err(unreadable()) };
        let mut map = Self { nodes: Vec::new(), owners: vec![0; usize::from(SLOTS)].into() };
        for entry in entries {
            let Value::Array(entry) = entry else { return Err(unreadable()) };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = entry.as_slice() else {
                return Err(unreadable());
            };
            let [host, Value::Int(port), ..] = master.as_slice() else { return Err(unreadable()) };
            let host = match host {
                Value::Nil => asked.to_owned(),
                host => redis::from_redis_value_ref::<String>(host).map_err(|_| unreadable())?,
            };
            // A question mark: the node has been told to announce a name, and has none.
            let host = if matches!(host.as_str(), "" | "?") { asked } else { &host };
            let (Ok(first), Ok(last), Ok(port)) =
                (usize::try_from(*first), usize::try_from(*last), u16::try_from(*port))
            else {
                return Err(unreadable());
            };
            let owner = map.place(&known.at(host, port));
            map.owners.get_mut(first..=last).ok_or_else(unreadable)?.fill(owner);
        }
        if map.nodes.is_empty() {
            return Err("knows no node that serves any slot".to_owned());
        }
        Ok(map)
    }

    fn place(&mut self, node: &Arc<Node>) -> u16 {
        let place = self.nodes.iter().position(|known| Arc::ptr_eq(known, node)).unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        });
        u16::try_from(place + 1).expect("there are fewer nodes than slots")
    }

    /// Returns who serves a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(self.owners[usize::from(slot)]).checked_sub(1)?)
    }

    pub(super) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Returns true if both say the same.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        self.owners == other.owners && self.nodes.iter().zip(&other.nodes).all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::connect::cluster::seeds::Seeds;

    fn nodes() -> Nodes {
        Nodes::new(Seeds::read("", "redis", "seed:7000").expect("an address"))
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let id = Value::BulkString(b"an-id".to_vec());
        let master = Value::Array(vec![host, Value::Int(port), id, Value::Array(Vec::new())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn each_slot_is_served_by_whom_the_answer_names() {
        let known = nodes();
        let answer = Value::Array(vec![
            entry(0, 99, text("10.0.0.1"), 7000),
            entry(100, 100, text("10.0.0.2"), 7001),
            entry(102, 16_383, text("10.0.0.1"), 7000),
        ]);
        let map = Map::read(&answer, "seed", &known).expect("a map");
        assert_eq!(map.nodes().len(), 2);
        let owner = |slot| map.owner(slot).map(|node| node.address().to_owned());
        assert_eq!(owner(0).as_deref(), Some("10.0.0.1:7000"));
        assert_eq!(owner(100).as_deref(), Some("10.0.0.2:7001"));
        assert_eq!(owner(101), None);
        assert_eq!(owner(16_383).as_deref(), Some("10.0.0.1:7000"));
        assert!(map.says_as(&Map::read(&answer, "seed", &known).expect("a map")));
    }

    #[test]
    fn a_host_that_is_not_told_is_the_one_that_was_asked() {
        for host in [Value::Nil, text(""), text("?")] {
            let answer = Value::Array(vec![entry(0, 16_383, host, 7005)]);
            let map = Map::read(&answer, "asked.example", &nodes()).expect("a map");
            assert_eq!(map.owner(5).map(|node| node.address().to_owned()).as_deref(), Some("asked.example:7005"));
        }
    }

    #[test]
    fn what_is_no_map_is_an_error() {
        for answer in [
            Value::Nil,
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 16_384, text("a"), 1)]),
            Value::Array(vec![entry(-1, 5, text("a"), 1)]),
            Value::Array(vec![entry(9, 5, text("a"), 1)]),
            Value::Array(vec![entry(0, 5, text("a"), 65_536)]),
            Value::Array(vec![entry(0, 5, Value::Int(3), -1)]),
        ] {
            assert!(Map::read(&answer, "seed", &nodes()).is_err(), "{answer:?}");
        }
    }
}
