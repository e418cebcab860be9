use std::{sync::Arc, time::Duration};

use super::{Redlock, node::Watched, rounds::Over};
use crate::{
    error::Error,
    lease::{
        LeaseId, LeaseStore, Terms,
        renew::{call_deadline, in_time},
    },
};

impl Redlock {
    /// Extends leases on a majority that still held them.
    pub(super) async fn extend(self, leases: Vec<(LeaseId, Duration)>) -> Result<Vec<bool>, Error> {
        let shortest = leases.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
        let until = self.ends(self.clock().now());
        let under = |(id, ttl): (LeaseId, Duration)| {
            let (id, over) = self.0.rounds.of(&id, until);
            ((id, ttl), over)
        };
        let (leases, over): (Vec<_>, Vec<_>) = leases.into_iter().map(under).unzip();
        let (leases, over) = (Arc::new(leases), Arc::new(over));
        let mut answers = self.ask_all(shortest, |_, node, inner| {
            let (leases, over) = (Arc::clone(&leases), Arc::clone(&over));
            async move {
                let held = node.counted(&inner, node.node.extend(&leases)).await?;
                let missing = leases.iter().zip(over.iter()).zip(&held).filter(|(_, held)| !**held);
                heal(&node, missing.map(|(((id, ttl), over), _)| (id.clone(), *ttl, over.clone())).collect());
                Ok(held)
            }
        });
        let most_missing = self.0.nodes.len() - self.quorum();
        let mut counts = vec![(0_usize, 0_usize); leases.len()];
        let mut failures = 0;
        let decided =
            |counts: &[(usize, usize)]| counts.iter().all(|(yes, no)| *yes >= self.quorum() || *no > most_missing);
        let mut last = None;
        while !decided(&counts) && failures <= most_missing {
            match answers.next().await {
                Some((_, Ok(held))) => {
                    for ((yes, no), held) in counts.iter_mut().zip(held) {
                        *(if held { yes } else { no }) += 1;
                    }
                }
                Some((_, Err(error))) => {
                    failures += 1;
                    last = Some(error);
                }
                None => break,
            }
        }
        if let (false, Some(error)) = (decided(&counts), last) {
            return Err(error);
        }
        Ok(counts.into_iter().map(|(yes, _)| yes >= self.quorum()).collect())
    }
}

/// Takes leases anew on a node that has lost them; they do not count for the extension that found it out.
fn heal(node: &Watched, missing: Vec<(LeaseId, Duration, Over)>) {
    if missing.is_empty() {
        return;
    }
    let node = node.clone();
    tokio::spawn(async move {
        for (id, ttl, over) in missing.into_iter().filter(|(_, _, over)| !over.is_over()) {
            let healing = async {
                let _ = node.node.acquire(&id, &Terms::new(ttl, "healed")).await;
                over.give_back_late(&node, &id).await
            };
            // What does not succeed is found out by the next extension.
            let _ = in_time(call_deadline(ttl), healing).await;
        }
    });
}
