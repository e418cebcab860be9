use std::time::Duration;

use super::Redlock;
use crate::{
    error::Error,
    key::Key,
    lease::{Acquired, Clock, Holder, Keeper, LeaseId, LeaseStore, Reply, Share, Terms, Watch},
};

impl LeaseStore for Redlock {
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        Reply::pending(self.clone().acquire(id.clone(), terms.clone()))
    }

    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
        Reply::pending(self.clone().extend(leases.to_vec()))
    }

    fn release(&self, id: &LeaseId) -> Reply<bool> {
        let (this, asked) = (self.clone(), id.clone());
        Reply::pending(async move {
            let (id, over) = this.0.rounds.of(&asked, this.ends(this.clock().now()));
            over.set();
            let mut answers = this.ask_all(this.0.max_lease, |_, node, _| node.node.release(&id));
            let (mut released, mut answered, mut last) = (0, 0, None);
            // Everybody is asked; a majority is waited for.
            while answered < this.quorum() {
                match answers.next().await {
                    Some((_, Ok(held))) => {
                        answered += 1;
                        released += usize::from(held);
                    }
                    Some((_, Err(error))) => last = Some(error),
                    None => return Err(last.unwrap_or_else(|| Error::store("no server of the redlock has answered"))),
                }
            }
            this.0.rounds.forget(&asked);
            Ok(released > 0)
        })
    }

    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
        let (this, name) = (self.clone(), *name);
        Reply::pending(async move {
            let mut answers = this.ask_all(this.0.max_lease, |_, node, _| node.node.holders(&name, share));
            let (mut found, mut answered, mut last) = (Vec::<(usize, Holder)>::new(), 0, None);
            while answered < this.0.nodes.len() {
                match answers.next().await {
                    Some((_, Ok(holders))) => {
                        answered += 1;
                        for holder in holders {
                            match found.iter_mut().find(|(_, known)| known.token == holder.token) {
                                Some((count, _)) => *count += 1,
                                None => found.push((1, holder)),
                            }
                        }
                        let holds = found.iter().any(|(count, _)| *count >= this.quorum());
                        if holds || (answered >= this.quorum() && found.is_empty()) {
                            break;
                        }
                    }
                    Some((_, Err(error))) => last = Some(error),
                    None => break,
                }
            }
            if answered < this.quorum() {
                return Err(last.unwrap_or_else(|| Error::store("no majority of the redlock has answered")));
            }
            found.retain(|(count, _)| *count >= this.quorum());
            Ok(found.into_iter().map(|(_, holder)| holder).collect())
        })
    }

    fn force(&self, name: &Key, share: Share) -> Reply<u64> {
        let (this, name) = (self.clone(), *name);
        Reply::pending(async move {
            let mut answers = this.ask_all(this.0.max_lease, |_, node, _| node.node.force(&name, share));
            let (mut answered, mut most, mut last) = (0, 0, None);
            while answered < this.quorum() {
                match answers.next().await {
                    Some((_, Ok(ended))) => {
                        answered += 1;
                        most = most.max(ended);
                    }
                    Some((_, Err(error))) => last = Some(error),
                    None => return Err(last.unwrap_or_else(|| Error::store("no majority of the redlock has answered"))),
                }
            }
            Ok(most)
        })
    }

    /// Told by whichever server is the first to know.
    fn watch(&self, name: &Key) -> Reply<Watch> {
        let (this, name) = (self.clone(), *name);
        Reply::pending(async move {
            let mut answers = this.ask_all(this.0.max_lease, |_, node, _| node.node.watch(&name));
            let mut watches = Vec::new();
            while watches.len() < this.quorum() {
                match answers.next().await {
                    Some((_, Ok(watch))) if !watch.is_by_asking() => watches.push(watch),
                    Some(_) => {}
                    None => break,
                }
            }
            Ok(Watch::any(watches))
        })
    }

    fn supports(&self, share: Share) -> Result<(), Error> {
        match share {
            Share::Whole => Ok(()),
            Share::OneOf(_) => Err(Error::invalid(
                "a semaphore over redlock: majorities cannot count to more than one (of three servers, three holders can \
                 each win two); use one server",
            )),
            _ => Err(Error::invalid(
                "a fair lock over redlock: the servers have no common order of waiters; use one server",
            )),
        }
    }

    fn supports_ttl(&self, ttl: Duration) -> Result<(), Error> {
        let longest = self.0.max_lease;
        if ttl > longest {
            return Err(Error::invalid(format!(
                "a lease of {ttl:?} over redlock: must be {longest:?} at most, its max_lease"
            )));
        }
        Ok(())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn keeper(&self) -> &Keeper {
        &self.0.keeper
    }

    fn clock(&self) -> Clock {
        self.0.nodes[0].node.clock()
    }
}
