//! Locks on a majority of servers: which may fail, and how late that is noticed.

use std::{
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tollgate::{
    Error, Key, Memory, Redis,
    lease::{
        Acquired, Fence, Holder, Incarnation, Keeper, LeaseId, LeaseStore, Lock, Node, Redlock, Released, Reply,
        Semaphore, Share, Terms, Token,
    },
};

use super::{ms, open, sleep, soon};
use crate::support::{assert_all_keys_expire, server::Server};

async fn over(servers: &[Server]) -> Redlock {
    let nodes: Vec<Redis> = servers.iter().map(open).collect();
    Redlock::over(nodes).trust_fresh_nodes().build().await.expect("an odd number")
}

fn servers() -> Vec<Server> {
    (0..3).map(|_| Server::start()).collect()
}

fn signal(server: &Server, signal: &str) {
    let sent = Command::new("kill").args([signal, &server.pid().to_string()]).status();
    assert!(sent.expect("kill").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_holds_one_lock_with_growing_fences() {
    let servers = servers();
    let (one, other) = (over(&servers).await, over(&servers).await);
    let mut last = None;
    for i in 0..20 {
        let (mine, theirs) = if i % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let guard = soon(Lock::new(mine, "x").acquire()).await.expect("free");
        assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
        last = guard.fence();
        assert!(Lock::new(theirs, "x").try_acquire().await.expect("an answer").is_none());
        assert_eq!(
            Lock::new(theirs, "x").holder().await.expect("an answer").map(|holder| holder.token.to_string().len()),
            Some(32)
        );
        assert_eq!(guard.release().await.expect("an answer"), Released::Released);
    }
    servers.iter().for_each(|server| assert_all_keys_expire(&mut server.admin()));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_come_at_once_hold_one_after_the_other() {
    let servers = servers();
    let inside = Arc::new(AtomicU8::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (redlock, inside) = (over(&servers).await, Arc::clone(&inside));
        tasks.spawn(async move {
            for _ in 0..3 {
                let guard = soon(Lock::new(&redlock, "x").acquire()).await.expect("free");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                sleep(ms(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("an answer");
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_of_three_that_hangs_costs_nothing() {
    let servers = servers();
    let redlock = over(&servers).await;
    let lock = Lock::new(&redlock, "x").ttl(ms(2_000));
    let cycle = async || {
        let begun = Instant::now();
        let guard = lock.acquire().await.expect("held");
        let acquired = begun.elapsed();
        guard.release().await.expect("released");
        (acquired, begun.elapsed() - acquired)
    };
    for _ in 0..5 {
        cycle().await;
    }
    let mut healthy = Vec::new();
    let mut hanging = Vec::new();
    for _ in 0..20 {
        healthy.push(cycle().await);
    }
    signal(&servers[1], "-STOP");
    for _ in 0..20 {
        hanging.push(cycle().await);
    }
    // One that is held all the while is renewed by the others.
    let guard = lock.acquire().await.expect("held");
    sleep(ms(2_500)).await;
    guard.check().expect("held");
    signal(&servers[1], "-CONT");
    let median = |times: &mut Vec<(Duration, Duration)>| {
        let (mut acquires, mut releases): (Vec<_>, Vec<_>) = times.iter().copied().unzip();
        acquires.sort();
        releases.sort();
        (acquires[10], releases[10])
    };
    let (healthy, hanging) = (median(&mut healthy), median(&mut hanging));
    println!("acquire and release: healthy {healthy:?}, with one of three frozen {hanging:?}");
    // Twice the healthy time, and what two cores of a busy machine add.
    assert!(hanging.0 < 2 * healthy.0 + ms(2) && hanging.1 < 2 * healthy.1 + ms(2), "{healthy:?} {hanging:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_held_and_a_lease_is_lost_in_time() {
    let mut servers = servers();
    let redlock = over(&servers).await;
    let guard = Lock::new(&redlock, "x").ttl(ms(500)).acquire().await.expect("held");
    servers[0].kill();
    sleep(ms(600)).await;
    guard.check().expect("two are left");
    let begun = Instant::now();
    servers[1].kill();
    soon(guard.lost()).await;
    assert!(begun.elapsed() < ms(520), "{:?}", begun.elapsed());
    let error = Lock::new(&redlock, "y").try_acquire().await.expect_err("no majority");
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_just_started_does_not_count() {
    let mut servers = servers();
    let nodes: Vec<Redis> = servers.iter().map(open).collect();
    let careful = Redlock::over(nodes).max_lease(ms(1_000)).build().await.expect("three");
    let lock = Lock::new(&careful, "x").ttl(ms(500)).wait(Duration::from_secs(8));
    assert!(lock.try_acquire().await.expect_err("all are fresh").to_string().contains("counted"));
    // Uptime is told in whole seconds: two seconds at least, three at most.
    let guard = lock.acquire().await.expect("counted after a while");
    // Two that forget everything would let another one in.
    for server in &mut servers[..2] {
        server.restart();
    }
    let other = Redlock::over(servers.iter().map(open).collect::<Vec<_>>()).max_lease(ms(1_000)).build().await;
    let other = Lock::new(&other.expect("three"), "x").ttl(ms(500));
    let begun = Instant::now();
    while begun.elapsed() < ms(900) {
        assert!(!matches!(other.try_acquire().await, Ok(Some(_))), "held twice");
        sleep(ms(20)).await;
    }
    soon(guard.lost()).await;
}

/// The only such case: a server forgets a lease as it runs, so that nobody can know, and it was one of only two.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_one_is_let_in_only_if_one_of_two_that_had_granted_is_emptied() {
    for (granted, emptied) in
        [(3, None), (3, Some(0)), (3, Some(2)), (2, None), (2, Some(0)), (2, Some(1)), (2, Some(2))]
    {
        let servers = servers();
        let (one, other, third) = (over(&servers).await, over(&servers).await, open(&servers[2]));
        let rival = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
        if granted == 2 {
            assert!(matches!(third.acquire(&rival, &Terms::new(ms(60_000), "")).await, Ok(Acquired::Held { .. })));
        }
        let guard = Lock::new(&one, "x").ttl(ms(20_000)).acquire().await.expect("a majority");
        // The third has answered by then, and nothing is renewed for long.
        sleep(ms(50)).await;
        assert_eq!(third.release(&rival).await.expect("an answer"), granted == 2);
        if let Some(at) = emptied {
            let _: () = redis::cmd("FLUSHALL").query(&mut servers[at].admin()).expect("FLUSHALL");
        }
        let second = Lock::new(&other, "x").try_acquire().await.expect("an answer");
        let may_hold = granted == 2 && emptied.is_some_and(|at| at < 2);
        assert_eq!(second.is_some(), may_hold, "{granted} granted, of which {emptied:?} is emptied");
        let renewed = guard.ensure(ms(19_790)).await;
        match second {
            // The first is told at its next renewal, and its fence is the lesser one.
            Some(second) => assert!(renewed.is_err_and(|error| error.is_lost()) && second.fence() > guard.fence()),
            None => guard.check().expect("held"),
        }
    }
}

#[tokio::test]
async fn what_a_majority_cannot_do_is_refused_with_the_reason() {
    for count in [0, 1, 2, 4, 6] {
        let nodes: Vec<Memory> = (0..count).map(|_| Memory::new()).collect();
        let error = Redlock::over(nodes).build().await.expect_err("refused");
        assert!(error.is_invalid() && error.to_string().contains(&format!("{count} servers")), "{error}");
    }
    let nodes: Vec<Memory> = (0..3).map(|_| Memory::new()).collect();
    let redlock = Redlock::over(nodes).trust_fresh_nodes().build().await.expect("three");
    assert!(Semaphore::new(&redlock, "x", 2).expect_err("refused").to_string().contains("majorities"));
    assert!(Lock::new(&redlock, "x").fair().try_acquire().await.expect_err("refused").to_string().contains("order"));
    let long = Lock::new(&redlock, "x").ttl(Duration::from_secs(61));
    assert!(long.try_acquire().await.expect_err("refused").to_string().contains("max_lease"));

    let server = Server::start();
    let rights: &[&str] = &["SETUSER", "u", "on", "nopass", "~*", "+@all", "-info"];
    let _: () = redis::cmd("ACL").arg(rights).query(&mut server.admin()).expect("ACL SETUSER");
    let node = || Redis::open(&format!("redis://u:any@127.0.0.1:{}", server.port())).expect("an address");
    let error = Redlock::over([node(), node(), node()]).build().await.expect_err("refused");
    assert!(error.is_invalid() && error.to_string().contains("+info"), "{error:?}");
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Grants,
    IsTaken,
    Fails,
    Hangs,
    /// It does what it is asked, and the answer comes too late.
    GrantsLate,
    /// It grants, but takes a while to tell who it is, which it is asked first.
    TellsLate,
}

const ALL: [Does; 5] = [Does::Grants, Does::IsTaken, Does::Fails, Does::Hangs, Does::GrantsLate];

#[derive(Clone, Debug)]
struct Double {
    memory: Memory,
    does: Arc<Mutex<Does>>,
}

impl Double {
    fn new() -> Self {
        Self { memory: Memory::new(), does: Arc::new(Mutex::new(Does::Grants)) }
    }

    fn answer<T: Send + Unpin + 'static>(&self, act: impl FnOnce() -> Reply<T>) -> Reply<T> {
        match *self.does.lock().expect("no panic") {
            Does::Grants | Does::IsTaken | Does::TellsLate => act(),
            Does::Fails => Reply::ready(Err(Error::store("down"))),
            Does::Hangs => Reply::pending(std::future::pending()),
            Does::GrantsLate => {
                let answer = act();
                Reply::pending(async move {
                    sleep(ms(60)).await;
                    answer.await
                })
            }
        }
    }
}

impl LeaseStore for Double {
    fn acquire(&self, id: &LeaseId, terms: &Terms) -> Reply<Acquired> {
        if *self.does.lock().expect("no panic") == Does::TellsLate {
            // As over a network: nothing is done before it is asked, which is when it has told who it is.
            let (memory, id, terms) = (self.memory.clone(), id.clone(), terms.clone());
            return Reply::pending(async move { memory.acquire(&id, &terms).await });
        }
        self.answer(|| self.memory.acquire(id, terms))
    }

    fn extend(&self, leases: &[(LeaseId, Duration)]) -> Reply<Vec<bool>> {
        self.answer(|| LeaseStore::extend(&self.memory, leases))
    }

    fn release(&self, id: &LeaseId) -> Reply<bool> {
        self.answer(|| self.memory.release(id))
    }

    fn holders(&self, name: &Key, share: Share) -> Reply<Vec<Holder>> {
        self.answer(|| self.memory.holders(name, share))
    }

    fn force(&self, name: &Key, share: Share) -> Reply<u64> {
        self.answer(|| self.memory.force(name, share))
    }

    fn keeper(&self) -> &Keeper {
        self.memory.keeper()
    }
}

impl Node for Double {
    fn raise(&self, id: &LeaseId, fences: &[Fence]) -> Reply<bool> {
        self.answer(|| self.memory.raise(id, fences))
    }

    fn incarnation(&self) -> Reply<Incarnation> {
        let told = || Reply::ready(Ok(Incarnation::new("one", Duration::from_secs(3_600), true)));
        if *self.does.lock().expect("no panic") != Does::TellsLate {
            return self.answer(told);
        }
        Reply::pending(async move {
            sleep(ms(60)).await;
            told().await
        })
    }
}

/// Every way in which three and five nodes can answer.
#[tokio::test]
async fn a_lock_is_held_exactly_if_a_majority_grants_it() {
    for count in [3_u32, 5] {
        for case in 0..5_u32.pow(count) {
            // Of five nodes each 31st case, which meets all of their numbers.
            if count == 5 && case % 31 != 0 {
                continue;
            }
            let does: Vec<Does> =
                (0..count).map(|i| ALL[usize::try_from(case / 5_u32.pow(i) % 5).expect("few")]).collect();
            let nodes: Vec<Double> = does.iter().map(|_| Double::new()).collect();
            let rival = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
            let redlock = Redlock::over(nodes.clone()).build().await.expect("an odd number");
            for (node, does) in nodes.iter().zip(&does) {
                if *does == Does::IsTaken {
                    let _ = node.acquire(&rival, &Terms::new(ms(60_000), "rival")).await;
                }
                *node.does.lock().expect("no panic") = *does;
            }
            // A call has a fifth of that.
            let lock = Lock::new(&redlock, "x").ttl(ms(100));
            let held = lock.try_acquire().await;
            let grants = does.iter().filter(|does| **does == Does::Grants).count();
            let is_held = matches!(held, Ok(Some(_)));
            assert_eq!(is_held, grants > does.len() / 2, "{does:?}: {held:?}");
        }
    }
}

#[tokio::test]
async fn what_gives_back_an_attempt_that_failed_does_not_end_the_next_one() {
    let nodes: Vec<Double> = (0..3).map(|_| Double::new()).collect();
    let redlock = Redlock::over(nodes.clone()).build().await.expect("three");
    let rival = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
    for node in &nodes[..2] {
        let _ = node.acquire(&rival, &Terms::new(ms(60_000), "rival")).await;
    }
    // The third grants, and says so when the attempt has long been given up.
    *nodes[2].does.lock().expect("no panic") = Does::GrantsLate;
    let id = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
    let terms = Terms::new(ms(2_000), "");
    assert!(matches!(redlock.acquire(&id, &terms).await, Ok(Acquired::Taken { .. })));
    for node in &nodes {
        *node.does.lock().expect("no panic") = Does::Grants;
        let _ = node.release(&rival).await;
    }
    assert!(matches!(redlock.acquire(&id, &terms).await, Ok(Acquired::Held { .. })));
    // By then the first attempt has been answered, in two steps of 60 ms, and is given back.
    sleep(ms(300)).await;
    for node in &nodes {
        let holders = node.memory.holders(&Key::from("x"), Share::Whole).await.expect("an answer");
        assert_eq!(holders.len(), 1, "given back with the attempt before");
    }
    assert!(redlock.release(&id).await.expect("an answer"));
    sleep(ms(20)).await;
    for node in &nodes {
        assert!(node.memory.holders(&Key::from("x"), Share::Whole).await.expect("an answer").is_empty());
    }
}

/// Whether it is granted by an acquire, or by an extension that heals.
#[tokio::test]
async fn what_a_slow_server_grants_after_the_release_is_given_back() {
    for is_healed in [false, true] {
        let nodes: Vec<Double> = (0..3).map(|_| Double::new()).collect();
        let redlock = Redlock::over(nodes.clone()).build().await.expect("three");
        let id = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
        let slow = async || {
            // Whatever it was asked before has been answered.
            sleep(ms(20)).await;
            let _ = nodes[2].memory.force(&Key::from("x"), Share::Whole).await;
            *nodes[2].does.lock().expect("no panic") = Does::TellsLate;
        };
        if !is_healed {
            slow().await;
        }
        assert!(matches!(redlock.acquire(&id, &Terms::new(ms(5_000), "")).await, Ok(Acquired::Held { .. })));
        if is_healed {
            slow().await;
            assert_eq!(redlock.extend(&[(id.clone(), ms(5_000))]).await.expect("an answer"), [true]);
        }
        assert!(redlock.release(&id).await.expect("an answer"));
        // It is asked who it is before and after, each of which takes 60 ms.
        sleep(ms(200)).await;
        for node in &nodes {
            let holders = node.memory.holders(&Key::from("x"), Share::Whole).await.expect("an answer");
            assert!(holders.is_empty(), "healed: {is_healed}, {holders:?}");
        }
        // The same may be taken again, and is not given back by what was late.
        assert!(matches!(redlock.acquire(&id, &Terms::new(ms(5_000), "")).await, Ok(Acquired::Held { .. })));
        sleep(ms(200)).await;
        assert_eq!(redlock.extend(&[(id.clone(), ms(5_000))]).await.expect("an answer"), [true]);
    }
}

#[tokio::test]
async fn an_extension_counts_who_still_held_and_heals_the_others() {
    let nodes: Vec<Double> = (0..3).map(|_| Double::new()).collect();
    let redlock = Redlock::over(nodes.clone()).build().await.expect("three");
    let id = LeaseId::new([Key::from("x")], Share::Whole, Token::random().expect("random bytes"));
    assert!(matches!(redlock.acquire(&id, &Terms::new(ms(5_000), "")).await, Ok(Acquired::Held { .. })));
    sleep(ms(20)).await;
    let forget = async |node: &Double| _ = node.memory.force(&Key::from("x"), Share::Whole).await;
    let extend = async || redlock.extend(&[(id.clone(), ms(5_000))]).await.expect("an answer")[0];
    forget(&nodes[0]).await;
    assert!(extend().await, "two still hold");
    sleep(ms(20)).await;
    let healed = nodes[0].memory.holders(&Key::from("x"), Share::Whole).await.expect("an answer");
    assert_eq!(healed.len(), 1);
    // One after the other: it was healed in time.
    forget(&nodes[1]).await;
    assert!(extend().await);
    sleep(ms(20)).await;
    // Two at once: another one may have held in between, whatever is healed now.
    forget(&nodes[1]).await;
    forget(&nodes[2]).await;
    assert!(!extend().await);
}
