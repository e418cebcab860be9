//! Requests whose keys do not lie in one place are charged part by part, and given back when a part refuses.
//!
//! On a Cluster the subjects of a request may lie in several slots; while a slot moves to another node, even the keys
//! of one subject may lie in two places. The parts are asked in the order of their buckets, so that of requests which
//! want the same last units one passes. A request that goes away in the middle gives back as well.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use redis::Value;
use smallvec::{SmallVec, smallvec};
use tokio::{runtime, task::JoinHandle};

use super::{
    batch::{Job, Promised},
    connect::cluster::{Cluster, Order, Way, slot_of},
    limit::{Asked, Asking, Call, Finding, Names, Part, Reply},
    script::{BLOCK, DECIDE, FLAG, SETTLE, STRIKE},
};
use crate::{
    error::Error,
    limit::{Adjustment, Answer, Decision, Micros, Outcome, Receipt},
};

/// Decides on a request on a cluster: in one call if its keys lie in one place, else part by part.
pub(super) fn decide(cluster: &Cluster, now: Option<Micros>, asked: Asked) -> Answer {
    let bucket = |asking: &Asking| cluster.bucket(asking.subject());
    if now.is_none() && asked.iter().all(|asking| bucket(asking) == bucket(&asked[0])) {
        return cluster.push(asked);
    }
    let mut places: Vec<usize> = (0..asked.len()).collect();
    places.sort_by_key(|place| bucket(&asked[*place]));
    let together = places.chunk_by(|one, other| bucket(&asked[*one]) == bucket(&asked[*other]));
    let mut pieces: Vec<_> = together.rev().map(|places| Piece { places: places.into(), by_key: false }).collect();
    // What decides comes first, and so lies last.
    pieces.sort_by_key(|piece| piece.places.iter().any(|place| !asked[*place].is_shadow()));
    #[cfg(test)]
    let pieces = if cluster.names().by_key { (0..asked.len()).rev().map(Piece::by_key).collect() } else { pieces };
    let (cluster, waiting) = (cluster.clone(), Arc::<AtomicU64>::default());
    let work = {
        let waiting = Arc::clone(&waiting);
        async move {
            let ground = Ground { way: cluster.way()?, names: cluster.names().clone(), now };
            Turn::new(ground, Some(cluster), asked, pieces, waiting).run().await
        }
    };
    Answer::parted(work, waiting)
}

/// Decides on jobs whose keys are on the way from one node to another: one key after the other.
pub(super) async fn each_by_key(way: &Way, names: &Names, jobs: Vec<Job>) {
    let ground = Ground { way: way.clone(), names: names.clone(), now: None };
    let decide = |job: Job| {
        let ground = ground.clone();
        Box::pin(async move {
            match job.promise {
                // Who asked for the part knows what it belongs to.
                Promised::Part(promise) => promise.keep(Ok(None)),
                Promised::Decision(promise) => {
                    let pieces = (0..job.asked.len()).rev().map(Piece::by_key).collect();
                    let turn = Turn::new(ground, None, job.asked, pieces, Arc::default());
                    promise.keep(turn.run().await);
                }
            }
        }) as Pin<Box<dyn Future<Output = ()> + Send>>
    };
    join(jobs.into_iter().map(decide).collect()).await;
}

/// Changes charges that may lie in several slots; those of a slot together.
pub(super) fn settle(cluster: &Cluster, now: Option<Micros>, adjustments: &[Adjustment<'_>]) -> Answer<()> {
    let (cluster, corrections) = (cluster.clone(), corrections(cluster.names(), now, adjustments));
    Answer::pending(async move { carry_out(&cluster.way()?, corrections).await })
}

/// Where to decide, and by what time.
#[derive(Clone)]
struct Ground {
    way: Way,
    names: Names,
    now: Option<Micros>,
}

/// A request under way.
struct Turn {
    cluster: Option<Cluster>,
    asked: Asked,
    /// The next one last.
    to_come: Vec<Piece>,
    done: Vec<(Piece, Part)>,
    /// The node that it waits for.
    waiting: Arc<AtomicU64>,
    taken: Taken,
}

/// Demands that are decided in one call.
struct Piece {
    places: SmallVec<[usize; 2]>,
    /// Whether the call may name one key alone. There is one place then.
    by_key: bool,
}

impl Piece {
    fn by_key(place: usize) -> Self {
        Self { places: smallvec![place], by_key: true }
    }
}

/// What was charged so far; given back if the request goes away before it has passed.
struct Taken {
    ground: Ground,
    runtime: runtime::Handle,
    charges: Vec<(Asking, Receipt)>,
    under_way: Option<(Asked, Answer<Option<Part>>)>,
}

impl Turn {
    /// # Panics
    ///
    /// Outside a runtime, in which no way could have been found.
    fn new(
        ground: Ground,
        cluster: Option<Cluster>,
        asked: Asked,
        to_come: Vec<Piece>,
        waiting: Arc<AtomicU64>,
    ) -> Self {
        let runtime = runtime::Handle::current();
        let taken = Taken { ground, runtime, charges: Vec::new(), under_way: None };
        Self { cluster, asked, to_come, done: Vec::new(), waiting, taken }
    }

    async fn run(mut self) -> Result<Decision, Error> {
        let mut giving_back: Option<JoinHandle<()>> = None;
        let mut refused = false;
        while let Some(piece) = self.to_come.pop() {
            let asked = |asking: &Asking| if refused { asking.looking() } else { asking.clone() };
            let asked: Asked = piece.places.iter().map(|place| asked(&self.asked[*place])).collect();
            self.note(&asked[0]);
            let answer = self.ask(&piece, asked.clone());
            let (_, answer) = self.taken.under_way.insert((asked, answer));
            let answer = answer.await;
            let asked = self.taken.under_way.take().expect("it was under way").0;
            let answer = match answer {
                // It decides nothing, so its failure is nobody's.
                Err(_) if asked.iter().all(Asking::is_shadow) => continue,
                answer => answer?,
            };
            match answer {
                Some(part) if part.decision.is_allowed() => {
                    self.taken.add(asked, &part.decision);
                    self.done.push((piece, part));
                }
                Some(part) => {
                    refused = true;
                    giving_back = self.taken.give_back();
                    self.done.push((piece, part));
                }
                None => self.to_come.extend(piece.places.iter().rev().map(|place| Piece::by_key(*place))),
            }
        }
        if let Some(giving_back) = giving_back {
            // However it ends, nothing more can be done.
            let _ = giving_back.await;
        }
        self.taken.charges.clear();
        Ok(self.decision(refused))
    }

    fn note(&self, next: &Asking) {
        if let Some(cluster) = &self.cluster {
            self.waiting.store(cluster.parts([next.subject()]), Ordering::Relaxed);
        }
    }

    fn ask(&self, piece: &Piece, asked: Asked) -> Answer<Option<Part>> {
        let ground = self.taken.ground.clone();
        match &self.cluster {
            _ if piece.by_key => Answer::pending(ground.decide_on_one_key(asked)),
            Some(cluster) if ground.now.is_none() => cluster.push_part(asked),
            _ => Answer::pending(ground.decide_alone(asked)),
        }
    }

    /// Puts together what was decided on the pieces.
    fn decision(&self, refused: bool) -> Decision {
        let mut outcomes: SmallVec<[Option<Outcome>; 4]> = smallvec![None; self.asked.len()];
        for (piece, part) in &self.done {
            let of_piece = if refused {
                let asked: Asked = piece.places.iter().map(|place| self.asked[*place].clone()).collect();
                part.finding.before(&asked)
            } else {
                part.decision.outcomes().iter().cloned().collect()
            };
            for (place, outcome) in piece.places.iter().zip(of_piece.iter()) {
                outcomes[*place] = Some(outcome.clone());
            }
        }
        let unknown = |asking: &Asking| Outcome::pass(asking.policy(), asking.policy().capacity()).in_shadow(true);
        let outcomes = outcomes.into_iter().zip(&self.asked);
        Decision::by(outcomes.map(|(outcome, asking)| outcome.unwrap_or_else(|| unknown(asking))).collect())
    }
}

impl Taken {
    fn add(&mut self, asked: Asked, decision: &Decision) {
        let outcomes = asked.into_iter().zip(decision.outcomes());
        let charged = outcomes.filter(|(asking, outcome)| asking.cost() > 0 && outcome.is_allowed());
        self.charges.extend(charged.map(|(asking, outcome)| (asking, outcome.receipt())));
    }

    /// Gives back what was charged, whether anybody waits for that or not.
    fn give_back(&mut self) -> Option<JoinHandle<()>> {
        let charges = mem::take(&mut self.charges);
        let ground = self.ground.clone();
        (!charges.is_empty()).then(|| {
            let heard = ground.way.behind.subscribe();
            self.runtime.spawn(async move {
                ground.give_back(charges).await;
                drop(heard);
            })
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back();
        let Some((asked, answer)) = self.under_way.take() else { return };
        let mut late =
            Taken { ground: self.ground.clone(), runtime: self.runtime.clone(), charges: Vec::new(), under_way: None };
        let heard = self.ground.way.behind.subscribe();
        // It may have been charged by now.
        self.runtime.spawn(async move {
            if let Ok(Some(part)) = answer.await
                && part.decision.is_allowed()
            {
                late.add(asked, &part.decision);
            }
            // What it gives back is heard before this is not any more.
            drop(late);
            drop(heard);
        });
    }
}

impl Ground {
    async fn give_back(self, charges: Vec<(Asking, Receipt)>) {
        let adjustments = charges
            .iter()
            .map(|(asking, receipt)| Adjustment::new(asking.policy(), asking.subject(), *receipt, asking.cost(), 0));
        let corrections = corrections(&self.names, self.now, &adjustments.collect::<Vec<_>>());
        if let Err(error) = carry_out(&self.way, corrections).await {
            tracing::debug!(%error, "what a refused request was charged could not be given back");
        }
    }

    /// Decides on keys of one slot, apart from all others.
    async fn decide_alone(self, asked: Asked) -> Result<Option<Part>, Error> {
        let call = Call::decide(&self.names, self.now, [(&asked, 1)].into_iter(), true);
        let slot = slot_of(call.first_key());
        let Some(reply) = self.way.call_or_scatter(slot, Order::Script(&DECIDE, &call)).await? else {
            return Ok(None);
        };
        let finding = Reply::new(&reply)?.0.next(&asked)?;
        let decision = finding.clone().decide(&asked);
        Ok(Part::new(Some(finding), decision))
    }

    /// Decides on one demand by calls that name one key each: they work on a slot that is on its way, wherever the key
    /// is at the time. What blocks the subject is looked at first.
    async fn decide_on_one_key(self, asked: Asked) -> Result<Option<Part>, Error> {
        let asking = &asked[0];
        let mut key = Vec::new();
        self.names.blocks(asking.subject(), &mut key);
        let blocks = self.way.call(slot_of(&key), Order::Command(redis::cmd("MGET").arg(&key))).await?;
        let mut finding = None;
        if let Some(until) = blocked_until(&blocks, asking.policy().name()) {
            let mut looked = self.find_on_one_key(smallvec![asking.looking()]).await?;
            if looked.is_before(until) {
                looked.block(until);
                finding = Some(looked);
            }
        }
        let finding = match finding {
            Some(blocked) => blocked,
            None => {
                let mut found = self.find_on_one_key(smallvec![asking.clone().without_escalation()]).await?;
                if !found.clone().decide(&asked).is_allowed()
                    && let Err(error) = self.escalate(asking, &mut found).await
                {
                    tracing::debug!(%error, "a refusal could not be counted");
                }
                found
            }
        };
        let decision = finding.clone().decide(&asked);
        Ok(Part::new(Some(finding), decision))
    }

    /// Counts a refusal, and blocks the subject if that leads to it.
    async fn escalate(&self, asking: &Asking, found: &mut Finding) -> Result<(), Error> {
        let Some(escalation) = asking.escalation() else { return Ok(()) };
        let call = Call::strike(&self.names, self.now, asking, escalation);
        let slot = slot_of(call.first_key());
        let Value::Int(long) = self.way.call(slot, Order::Script(&STRIKE, &call)).await? else { return Ok(()) };
        let Some(long) = u64::try_from(long).ok().filter(|long| *long > 0) else { return Ok(()) };
        found.block_for(long);
        let (policy, subject) = (asking.policy(), asking.subject());
        self.way.call(slot, Order::Script(&FLAG, &Call::flag(&self.names, subject, long))).await?;
        let call = Call::block(&self.names, self.now, policy, subject, long).block_without_flag();
        self.way.call(slot, Order::Script(&BLOCK, &call)).await.map(drop)
    }

    async fn find_on_one_key(&self, asked: Asked) -> Result<Finding, Error> {
        let call = Call::decide_on_one_key(&self.names, self.now, &asked[0]);
        let reply = self.way.call(slot_of(call.first_key()), Order::Script(&DECIDE, &call)).await?;
        Reply::new(&reply)?.0.next(&asked)
    }
}

/// Corrections of charges in one slot: all in one call, and, if they are several, each in one of its own.
struct Correction {
    together: Call,
    each: Vec<Call>,
}

fn corrections(names: &Names, now: Option<Micros>, adjustments: &[Adjustment<'_>]) -> Vec<Correction> {
    let bucket = |adjustment: &Adjustment<'_>| adjustment.subject().bucket(names.buckets);
    let mut sorted: Vec<&Adjustment<'_>> = adjustments.iter().collect();
    sorted.sort_by_key(|adjustment| bucket(adjustment));
    let call = |some: &[&Adjustment<'_>]| Call::settle(names, now, some.iter().copied());
    let of_slot = |some: &[&Adjustment<'_>]| Correction {
        together: call(some),
        each: if some.len() > 1 { some.chunks(1).map(call).collect() } else { Vec::new() },
    };
    sorted.chunk_by(|one, other| bucket(one) == bucket(other)).map(of_slot).collect()
}

async fn carry_out(way: &Way, corrections: Vec<Correction>) -> Result<(), Error> {
    let settle = |correction: Correction| {
        Box::pin(async move {
            let slot = slot_of(correction.together.first_key());
            if way.call_or_scatter(slot, Order::Script(&SETTLE, &correction.together)).await?.is_none() {
                for one in &correction.each {
                    way.call(slot, Order::Script(&SETTLE, one)).await?;
                }
            }
            Ok(())
        }) as Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>>
    };
    join(corrections.into_iter().map(settle).collect()).await.into_iter().collect()
}

/// Reads until when a policy blocks a subject, from what block.lua keeps.
fn blocked_until(blocks: &Value, policy: &str) -> Option<Micros> {
    let Value::Array(values) = blocks else { return None };
    let Some(Value::BulkString(text)) = values.first() else { return None };
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split(' ');
    while let (Some(name), Some(until)) = (words.next(), words.next()) {
        if name == policy {
            return until.parse().ok();
        }
    }
    None
}

/// Waits for all of some futures, without a task for any.
async fn join<T>(mut all: Vec<Pin<Box<dyn Future<Output = T> + Send + '_>>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, done) in all.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
