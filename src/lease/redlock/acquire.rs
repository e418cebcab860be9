use std::time::Duration;

use super::{Redlock, rounds::Round};
use crate::{
    error::Error,
    lease::{Acquired, Fence, LeaseId, Terms},
};

impl Redlock {
    /// Takes a majority, raises its greatest fences on a majority, and gives back what came to nothing.
    pub(super) async fn acquire(self, id: LeaseId, terms: Terms) -> Result<Acquired, Error> {
        let round = Round::begin(&self, id, terms.ttl)?;
        let id = round.id().clone();
        let mut answers = self.ask_all(terms.ttl, |_, node, inner| {
            let (id, terms, over) = (id.clone(), terms.clone(), round.over());
            async move {
                let answer = node.counted(&inner, node.node.acquire(&id, &terms)).await;
                over.give_back_late(&node, &id).await?;
                answer
            }
        });
        let (mut held, mut fences, mut left, mut failure) = (Vec::new(), Vec::new(), Vec::new(), None);
        while held.len() < self.quorum() {
            // As soon as a majority cannot be had any more, nobody is waited for.
            let lost = left.len() + failure.as_ref().map_or(0, |(count, _)| *count);
            if lost > self.0.nodes.len() - self.quorum() {
                break;
            }
            match answers.next().await {
                Some((i, Ok(Acquired::Held { fences: minted }))) => {
                    raise(&mut fences, &minted);
                    held.push((i, minted));
                }
                Some((_, Ok(Acquired::Taken { left: told, name }))) => left.push((told, name)),
                Some((_, Err(error))) => {
                    let count = failure.map_or(0, |(count, _)| count) + 1;
                    failure = Some((count, error));
                }
                // No node is asked for permits.
                None | Some((_, Ok(Acquired::Permit { .. }))) => break,
            }
        }
        if held.len() >= self.quorum() && self.raise_on_majority(&id, &terms, &held, &fences).await {
            round.win();
            return Ok(Acquired::Held { fences });
        }
        drop(round);
        let is_held_by_another = left.len() >= self.quorum();
        match (left.into_iter().min(), failure) {
            (Some((left, name)), _) if is_held_by_another => Ok(Acquired::Taken { left, name }),
            // Of several who came at once nobody had a majority: they come again one by one, by chance.
            (Some((_, name)), _) => {
                let by_chance = 1_000 + u64::from(id.token().jitter()) % 20_000;
                Ok(Acquired::Taken { left: Duration::from_micros(by_chance), name })
            }
            (None, Some((_, error))) => Err(error),
            (None, None) => Err(Error::store("a lease was lost on the servers of the redlock as it was taken")),
        }
    }

    /// Makes sure that a majority, on which the token still stands, knows the fences.
    async fn raise_on_majority(
        &self,
        id: &LeaseId,
        terms: &Terms,
        held: &[(usize, Vec<Fence>)],
        fences: &[Fence],
    ) -> bool {
        let known: Vec<usize> = held.iter().filter(|(_, minted)| minted == fences).map(|(i, _)| *i).collect();
        if known.len() >= self.quorum() {
            return true;
        }
        let fences = fences.to_vec();
        let mut answers = self.ask_all(terms.ttl, |i, node, inner| {
            let (id, fences) = (id.clone(), fences.clone());
            let holds = held.iter().any(|(holder, _)| *holder == i);
            async move {
                if !holds {
                    return Ok(false);
                }
                node.counted(&inner, node.node.raise(&id, &fences)).await
            }
        });
        let (mut raised, mut asked) = (0, 0);
        while raised < self.quorum() && asked < self.0.nodes.len() {
            let Some((_, answer)) = answers.next().await else { break };
            asked += 1;
            raised += usize::from(matches!(answer, Ok(true)));
        }
        raised >= self.quorum()
    }
}

/// Raises each fence to the greatest.
fn raise(fences: &mut Vec<Fence>, minted: &[Fence]) {
    if fences.is_empty() {
        fences.extend_from_slice(minted);
    }
    fences.iter_mut().zip(minted).for_each(|(fence, minted)| *fence = (*fence).max(*minted));
}
