use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::mpsc, task::JoinSet};

use super::{
    Acquired, Clock, Fence, Holder, Keeper, LeaseId, LeaseStore, Reply, Share, Terms, Token, Watch,
    renew::{call_deadline, in_time},
};
use crate::{error::Error, key::Key};

/// One of the servers of a [`Redlock`].
///
/// `Redis` is one; to bring your own, implement this beside [`LeaseStore`].
pub trait Node: LeaseStore {
    /// Raises the fences of a lease that the token still holds here; returns false, and does nothing, if it does not.
    fn raise(&self, id: &LeaseId, fences: &[Fence]) -> Reply<bool>;

    /// Tells which run of the server is being spoken to.
    ///
    /// # Errors
    ///
    /// If the server cannot be asked; [`Error::is_invalid`] if it may not.
    fn incarnation(&self) -> Reply<Incarnation>;
}

/// A run of a server: it begins with nothing that the one before had kept in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incarnation {
    /// Another one for each start.
    pub run: String,
    /// For how long it has run.
    pub up_for: Duration,
    /// Whether it takes writes by itself, rather than following another one.
    pub is_master: bool,
}

impl Incarnation {
    /// Describes a run of a server.
    pub fn new(run: impl Into<String>, up_for: Duration, is_master: bool) -> Self {
        Self { run: run.into(), up_for, is_master }
    }
}

/// Keeps leases on a majority of independent servers, for where one server is not enough.
///
/// First ask whether it is: with one server, or a master and replicas, a lease may be held twice after a failover, which a
/// fence at the resource makes harmless. Redlock tolerates the loss of a minority of servers that do not know each other;
/// it costs as many calls, and still needs the fence where nothing may happen twice.
///
/// - It answers as soon as a majority has answered, so a server that hangs costs nothing. What is late is settled
///   in the background.
/// - Fences grow as on one server: each server mints one, and the greatest is raised on a majority before the lease is
///   granted. So the next majority meets it.
/// - An extension counts servers that still held. Others are healed, and do not count for it.
/// - A server that has started less than [`max_lease`](RedlockBuilder::max_lease) and a second ago, is another one than
///   before, or follows another one is not counted: it may have forgotten a lease.
///
/// ```no_run
/// # async fn make() -> Result<(), tollgate::Error> {
/// # #[cfg(feature = "redis")] {
/// use tollgate::{Redis, lease::{Lock, Redlock}};
///
/// let servers = ["redis://a", "redis://b", "redis://c"].map(Redis::open);
/// let redlock = Redlock::over(servers.into_iter().collect::<Result<Vec<_>, _>>()?).build().await?;
/// let guard = Lock::new(&redlock, "order:7").acquire().await?;
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock(Arc<Inner>);

struct Inner {
    nodes: Vec<Watched>,
    rounds: Rounds,
    keeper: Keeper,
    max_lease: Duration,
    trusts_fresh: bool,
}

/// A node, and what is known of it.
#[derive(Clone)]
struct Watched {
    node: Arc<dyn Node>,
    seen: Arc<Mutex<Option<Seen>>>,
}

#[derive(Clone, Debug)]
struct Seen {
    run: String,
    was_master: bool,
    /// Since when it has been the same, by our clock.
    since: Option<Duration>,
}

/// Sets what a [`Redlock`] needs to know.
#[must_use = "it does nothing until it is built"]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn Node>>,
    max_lease: Duration,
    trusts_fresh: bool,
}

impl Redlock {
    /// Begins with the servers: three, five or seven that do not replicate each other.
    pub fn over<N: Node>(nodes: impl IntoIterator<Item = N>) -> RedlockBuilder {
        let nodes = nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn Node>).collect();
        RedlockBuilder { nodes, max_lease: DEFAULT_MAX_LEASE, trusts_fresh: false }
    }
}

impl RedlockBuilder {
    /// Sets the longest lease that anybody takes on these servers; a minute by default. All processes have to say the same.
    ///
    /// A longer lease is refused, and a server that was restarted is left out for so long.
    pub fn max_lease(mut self, longest: Duration) -> Self {
        self.max_lease = longest;
        self
    }

    /// Counts servers that have just started.
    ///
    /// For the first start of all, when there cannot be a lease, and for tests. Where a server may have forgotten one, a
    /// lease can be held twice.
    pub fn trust_fresh_nodes(mut self) -> Self {
        self.trusts_fresh = true;
        self
    }

    /// Asks the servers who they are, and builds. A server that cannot be reached is asked again when it is needed.
    ///
    /// # Errors
    ///
    /// If the number of servers is even or below three, or one of them does not let itself be asked (`INFO`).
    ///
    /// # Cancel safety
    ///
    /// It only asks.
    pub async fn build(self) -> Result<Redlock, Error> {
        let count = self.nodes.len();
        if count < 3 {
            return Err(Error::invalid(format!(
                "redlock over {count} servers: must be three or more, since with fewer the loss of one is the loss of all; \
                 on one server a lock needs no redlock"
            )));
        }
        if count.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "redlock over {count} servers: must be an odd number, since one more than {} tolerates the loss of no more \
                 of them",
                count - 1
            )));
        }
        let mut asking = JoinSet::new();
        for node in self.nodes.clone() {
            asking.spawn(async move { in_time(ASK_WITHIN, node.incarnation()).await });
        }
        for answer in asking.join_all().await {
            if let Err(error) = answer
                && error.is_invalid()
            {
                return Err(error);
            }
        }
        let nodes = self.nodes.into_iter().map(|node| Watched { node, seen: Arc::default() }).collect();
        let Self { max_lease, trusts_fresh, .. } = self;
        Ok(Redlock(Arc::new(Inner {
            nodes,
            rounds: Rounds::default(),
            keeper: Keeper::new(),
            max_lease,
            trusts_fresh,
        })))
    }
}

impl Watched {
    /// Fails if the run of the server that is being spoken to does not count; returns which it is.
    async fn counts(&self, inner: &Inner) -> Result<String, Error> {
        let Incarnation { run, up_for, is_master } = self.node.incarnation().await?;
        if !is_master {
            self.note(&run, false);
            return Err(Error::store("a server of the redlock follows another one"));
        }
        let since = self.note(&run, true);
        if inner.trusts_fresh {
            return Ok(run);
        }
        let least = inner.max_lease + Duration::from_secs(1);
        let known_for = since.map_or(Duration::MAX, |since| self.node.clock().now().saturating_sub(since));
        if up_for < least || known_for < least {
            return Err(Error::store(format!(
                "a server of the redlock is not counted until it has been the same for {least:?}"
            )));
        }
        Ok(run)
    }

    /// Notes which run it is, and returns since when it is not another one, if it was one.
    fn note(&self, run: &str, is_master: bool) -> Option<Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*seen {
            None => None,
            Some(seen) if seen.run == run && seen.was_master == is_master => seen.since,
            Some(_) => Some(self.node.clock().now()),
        };
        *seen = Some(Seen { run: run.to_owned(), was_master: is_master, since });
        since
    }

    /// Asks for something that counts only if it was the same run before and after.
    async fn counted<T>(&self, inner: &Inner, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let before = self.counts(inner).await?;
        let answer = what.await?;
        let after = self.counts(inner).await?;
        if before == after {
            Ok(answer)
        } else {
            Err(Error::store("a server of the redlock has started anew meanwhile"))
        }
    }
}

impl Redlock {
    fn quorum(&self) -> usize {
        self.0.nodes.len() / 2 + 1
    }

    /// Asks all nodes, each in a task of its own: one that is late is settled though nobody waits for it any more.
    fn ask_all<T, F>(&self, ttl: Duration, ask: impl Fn(usize, Watched, Arc<Inner>) -> F) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, answers) = mpsc::unbounded_channel();
        for (i, node) in self.0.nodes.iter().enumerate() {
            let (sender, asking) = (sender.clone(), ask(i, node.clone(), Arc::clone(&self.0)));
            tokio::spawn(async move {
                // Who has enough answers waits for no more.
                let _ = sender.send((i, in_time(call_deadline(ttl), asking).await));
            });
        }
        Answers(answers)
    }

    /// Takes a majority, raises its greatest fences on a majority, and gives back what came to nothing.
    async fn acquire(self, id: LeaseId, terms: Terms) -> Result<Acquired, Error> {
        let round = self.begin(&id, terms.ttl)?;
        let (asked, id) = (id, round.id.clone());
        let mut answers = self.ask_all(terms.ttl, |_, node, inner| {
            let (id, terms, given_up) = (id.clone(), terms.clone(), Arc::clone(&round.given_up));
            async move {
                let deadline = call_deadline(terms.ttl);
                let answer = in_time(deadline, node.counted(&inner, node.node.acquire(&id, &terms))).await;
                if given_up.load(Ordering::SeqCst) {
                    // The release of the round may have come before this.
                    node.node.release(&id).await?;
                }
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
            round.win(&asked);
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

    /// Begins a round under a token of its own, or goes on with the one that holds.
    fn begin(&self, id: &LeaseId, ttl: Duration) -> Result<Round, Error> {
        let id = self.0.rounds.begin(id, self.clock().now(), self.0.max_lease)?;
        Ok(Round { redlock: self.clone(), id, ttl, given_up: Arc::default(), is_won: false })
    }

    async fn extend(self, leases: Vec<(LeaseId, Duration)>) -> Result<Vec<bool>, Error> {
        let shortest = leases.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
        let now = self.clock().now();
        let under = |(id, ttl): (LeaseId, Duration)| (self.0.rounds.of(&id, now, self.0.max_lease), ttl);
        let leases: Arc<Vec<_>> = Arc::new(leases.into_iter().map(under).collect());
        let mut answers = self.ask_all(shortest, |_, node, inner| {
            let leases = Arc::clone(&leases);
            async move {
                let held = node.counted(&inner, node.node.extend(&leases)).await?;
                heal(&node, &leases, &held);
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
fn heal(node: &Watched, leases: &Arc<Vec<(LeaseId, Duration)>>, held: &[bool]) {
    if held.iter().all(|held| *held) {
        return;
    }
    let (node, leases, held) = (Arc::clone(&node.node), Arc::clone(leases), held.to_vec());
    tokio::spawn(async move {
        for ((id, ttl), _) in leases.iter().zip(held).filter(|(_, held)| !held) {
            let _ = in_time(call_deadline(*ttl), node.acquire(id, &Terms::new(*ttl, "healed"))).await;
        }
    });
}

/// Raises each fence to the greatest.
fn raise(fences: &mut Vec<Fence>, minted: &[Fence]) {
    if fences.is_empty() {
        fences.extend_from_slice(minted);
    }
    fences.iter_mut().zip(minted).for_each(|(fence, minted)| *fence = (*fence).max(*minted));
}

/// Under which token each lease is held on the nodes.
///
/// Each round of acquires has a token of its own: what gives back a round that came to nothing may reach a node late, and
/// must not end there what the next round has taken.
#[derive(Default)]
struct Rounds(Mutex<HashMap<Token, Taken>>);

struct Taken {
    under: Token,
    is_won: bool,
    /// When it has ended at the latest, if nobody speaks of it any more.
    until: Duration,
}

impl Rounds {
    fn begin(&self, id: &LeaseId, now: Duration, max_lease: Duration) -> Result<LeaseId, Error> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= 64 && all.len().is_power_of_two() {
            all.retain(|_, taken| taken.until > now);
        }
        let until = now + 2 * max_lease;
        let under = match all.get(&id.token()) {
            Some(taken) if taken.is_won => taken.under,
            _ => Token::random()?,
        };
        let is_won = all.get(&id.token()).is_some_and(|taken| taken.is_won);
        all.insert(id.token(), Taken { under, is_won, until });
        Ok(LeaseId::new(id.names().to_vec(), id.share(), under))
    }

    /// Returns what a lease is called on the nodes.
    fn of(&self, id: &LeaseId, now: Duration, max_lease: Duration) -> LeaseId {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(taken) = all.get_mut(&id.token()) else { return id.clone() };
        taken.until = now + 2 * max_lease;
        LeaseId::new(id.names().to_vec(), id.share(), taken.under)
    }

    fn win(&self, id: &LeaseId) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(id.token()).and_modify(|taken| taken.is_won = true);
    }

    fn end(&self, id: &LeaseId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.token());
    }
}

/// A round of acquires. Unless it is won, all is given back, also by nodes that are late, and if nobody waits any more.
struct Round {
    redlock: Redlock,
    id: LeaseId,
    ttl: Duration,
    given_up: Arc<AtomicBool>,
    is_won: bool,
}

impl Round {
    fn win(mut self, id: &LeaseId) {
        self.is_won = true;
        self.redlock.0.rounds.win(id);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.is_won {
            return;
        }
        self.given_up.store(true, Ordering::SeqCst);
        // Without a runtime nothing can be sent, and what was granted ends by itself.
        let Ok(runtime) = Handle::try_current() else { return };
        for node in &self.redlock.0.nodes {
            let (node, id, ttl) = (Arc::clone(&node.node), self.id.clone(), self.ttl);
            runtime.spawn(async move {
                let _ = in_time(call_deadline(ttl), node.release(&id)).await;
            });
        }
    }
}

/// The answers of nodes as they come.
struct Answers<T>(mpsc::UnboundedReceiver<(usize, Result<T, Error>)>);

impl<T> Answers<T> {
    /// Returns the next answer; nothing when all have answered.
    async fn next(&mut self) -> Option<(usize, Result<T, Error>)> {
        self.0.recv().await
    }
}

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
            let id = this.0.rounds.of(&asked, this.clock().now(), this.0.max_lease);
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
            this.0.rounds.end(&asked);
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

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("nodes", &self.0.nodes.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

const DEFAULT_MAX_LEASE: Duration = Duration::from_secs(60);

/// How long a server may take to say who it is when a redlock is built.
const ASK_WITHIN: Duration = Duration::from_secs(2);
