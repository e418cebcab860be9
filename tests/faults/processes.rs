//! Faults as whole processes see them: a fleet of them, their memory, and the names that they look up.

use std::{env, fs, process::Command, time::Duration};

use redis::Commands;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate::{Limiter, Policy, Quota};

use crate::{
    LOCAL, SECONDS, ask, assert_flat, assert_well, command, open,
    proxy::{Mood, Proxy},
    recovers_within, resident_kib, signal,
    support::{calls, other_process, printed, server::Server},
};

const FLEET: &str = "TOLLGATE_TEST_FLEET";
const FLOOD: &str = "TOLLGATE_TEST_FLOOD";
const BAD_DAYS: &str = "TOLLGATE_TEST_BAD_DAYS";
const HOSTS: &str = "TOLLGATE_TEST_HOSTS";

const PROCESSES: u64 = 8;
const LIMIT: u64 = 80;
const SHARE: u64 = LIMIT / PROCESSES;

fn policies() -> [Policy; 3] {
    let quota = Quota::per_day(LIMIT);
    [
        Policy::fixed_window("fixed", quota),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ]
}

/// Takes note that another process has got so far, where its parent looks.
fn tell(url: &str) {
    let client = redis::Client::open(url).expect("an address");
    let mut server = client.get_connection().expect("a connection");
    let _: u64 = server.incr("told", 1).expect("INCR");
}

/// Waits until so many processes have told.
async fn told(server: &Server, processes: u64) {
    let mut admin = server.admin();
    let started = Instant::now();
    while admin.get::<_, Option<u64>>("told").expect("GET") != Some(processes) {
        assert!(started.elapsed() < Duration::from_secs(20), "the other processes do not come so far");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_processes_that_lose_their_server_under_load_stay_within_their_bound() {
    let mut server = Server::start();
    let limiter = open(&server.url());
    for policy in policies() {
        for _ in 0..LIMIT {
            assert!(limiter.check(&policy, "exhausted").await.is_allowed());
        }
    }
    let test = "processes::one_process_of_the_fleet";
    let mut fleet: Vec<_> = (0..PROCESSES).map(|_| other_process(test, FLEET, &server.url())).collect();
    told(&server, PROCESSES).await;
    // Some way into the quota.
    sleep(Duration::from_millis(150)).await;
    server.kill();
    let (mut before, mut outage) = ([0; 3], [0; 3]);
    for process in &mut fleet {
        let counts = printed(process, "counts:");
        for (i, counts) in counts.split(' ').enumerate() {
            let counts: Vec<u64> = counts.split('/').map(|count| count.parse().expect("a count")).collect();
            let [exact, degraded, exhausted] = counts[..] else { panic!("{counts:?}") };
            assert_eq!(exhausted, 0, "who was refused stays refused");
            // Its share, less what it was granted before.
            assert!(degraded <= SHARE.saturating_sub(exact), "{i}: {degraded} in the outage after {exact}");
            before[i] += exact;
            outage[i] += degraded;
        }
    }
    println!("admitted before the outage {before:?}, and in it {outage:?}");
    for i in 0..3 {
        assert!((1..LIMIT).contains(&before[i]), "the outage came too late or too soon: {before:?}");
        assert!(outage[i] > 0 && outage[i] <= PROCESSES * SHARE, "{outage:?}");
    }
}

/// Does its work only as one of the processes of the test above.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_of_the_fleet() {
    let Ok(url) = env::var(FLEET) else { return };
    let limiter = open(&url).replicas(u32::try_from(PROCESSES).expect("a few"));
    let policies = policies();
    for policy in &policies {
        let refused = limiter.check(policy, "exhausted").await;
        assert!(!refused.is_allowed() && !refused.is_degraded());
    }
    tell(&url);
    // Of each policy: admitted by the server, admitted in the outage, and admitted though all is used.
    let mut counts = [[0_u64; 3]; 3];
    let mut outage = None::<Instant>;
    while outage.is_none_or(|began| began.elapsed() < Duration::from_millis(1_500)) {
        for (policy, counts) in policies.iter().zip(&mut counts) {
            let decision = limiter.check(policy, "everybody").await;
            if decision.is_degraded() {
                outage.get_or_insert_with(Instant::now);
            }
            counts[usize::from(decision.is_degraded())] += u64::from(decision.is_allowed());
            counts[2] += u64::from(limiter.check(policy, "exhausted").await.is_allowed());
        }
        sleep(Duration::from_millis(40)).await;
    }
    let counts = counts.map(|counts| counts.map(|count| count.to_string()).join("/"));
    println!("counts: {}", counts.join(" "));
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(any(debug_assertions, not(target_os = "linux")), ignore = "needs a build for speed, and /proc")]
async fn a_million_spoofed_clients_in_an_outage_cost_no_more_memory_than_is_bounded() {
    let mut server = Server::start();
    let mut process = other_process("processes::a_process_that_is_flooded", FLOOD, &server.url());
    told(&server, 1).await;
    server.kill();
    let kib = printed(&mut process, "kib:");
    let [before, full, after] = kib.split(' ').map(|kib| kib.parse().expect("a number")).collect::<Vec<u64>>()[..]
    else {
        panic!("{kib}")
    };
    println!("{before} KiB before, {full} KiB with a million clients, {after} KiB with two");
    assert!(full - before < 150 * 1_024 && after < full + 2 * 1_024, "{kib}");
}

/// Does its work only as the other process of the test above.
#[tokio::test]
async fn a_process_that_is_flooded() {
    let Ok(url) = env::var(FLOOD) else { return };
    let (limiter, policy) = (open(&url), Policy::fixed_window("fixed", Quota::per_day(5)));
    for _ in 0..5 {
        assert!(limiter.check(&policy, "exhausted").await.is_allowed());
    }
    assert!(!limiter.check(&policy, "exhausted").await.is_allowed());
    tell(&url);
    while !limiter.check(&policy, "exhausted").await.is_degraded() {
        sleep(Duration::from_millis(5)).await;
    }
    let mut kib = vec![resident_kib()];
    for round in 0..2 {
        for i in 0..1_100_000 {
            let _ = limiter.check(&policy, format!("spoofed:{round}:{i}")).await;
        }
        assert!(!limiter.check(&policy, "exhausted").await.is_allowed(), "it was forgotten in the flood");
        kib.push(resident_kib());
    }
    println!("kib: {}", kib.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
async fn faults_that_come_again_and_again_leave_no_memory_and_no_connection_behind() {
    let mut process = other_process("processes::a_process_that_has_bad_days", BAD_DAYS, "");
    let told = printed(&mut process, "bad days:");
    println!("{told}");
    for fault in told.split(", ") {
        let numbers: Vec<i64> = fault.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [kib, open] = numbers[..] else { panic!("{told}") };
        // Of three thousand requests, 350 bytes of each would be as much.
        assert!(kib < 1_024 && open <= 2, "{fault}");
    }
    assert_eq!(told.split(", ").count(), 6, "{told}");
}

/// Does its work only as the other process of the test above, and tells what each fault adds, in KiB and open files.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_has_bad_days() {
    if env::var(BAD_DAYS).is_err() {
        return;
    }
    let mut told = Vec::new();
    // The first time is for all that is needed at all.
    for fault in ["stop", "stop", "swallow", "drop replies", "half-close", "cut", "nobody"] {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        let limiter = open(&proxy.url());
        assert_well(&limiter).await;
        let mut had = Vec::new();
        for _ in 0..4 {
            match fault {
                "stop" => signal(&server, "STOP"),
                "swallow" => proxy.be(Mood::Swallows),
                "drop replies" => proxy.be(Mood::DropsReplies),
                "half-close" => proxy.be(Mood::HalfCloses),
                "cut" => proxy.cut(),
                _ => {
                    proxy.lead_to(1);
                    proxy.cut();
                }
            }
            for _ in 0..3 {
                // How long they take is judged by other cases, beside which this process runs.
                let ask = |limiter: Limiter| async move { limiter.check(&LOCAL, "user:42").await };
                (0..1_000).map(|_| ask(limiter.clone())).collect::<JoinSet<_>>().join_all().await;
                sleep(Duration::from_millis(60)).await;
            }
            signal(&server, "CONT");
            proxy.be(Mood::Passes);
            proxy.lead_to(server.port());
            recovers_within(&limiter, SECONDS).await;
            had.push((resident_kib().cast_signed(), open_files()));
        }
        // What leaks does so each time; what so many at once need for a while may be more now than before.
        let least = had.windows(2).map(|had| had[1].0 - had[0].0).min().expect("some");
        told.push(format!("{fault} {least} {}", had[3].1 - had[1].1));
    }
    println!("bad days: {}", told[1..].join(", "));
}

/// Returns how many files and connections this process has open.
fn open_files() -> i64 {
    fs::read_dir("/proc/self/fd").expect("/proc").count().try_into().expect("a few")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_stops_resolving_and_one_that_leads_elsewhere() {
    let hosts = tempfile::NamedTempFile::new().expect("a file");
    // Names of its own are a matter of its mounts: nothing changes for anybody else.
    let as_other = "mount --bind \"$TOLLGATE_TEST_HOSTS\" /etc/hosts && exec \"$@\"";
    let may = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).output();
    if !may.is_ok_and(|ran| ran.status.success()) {
        println!("skipped: this system lets nobody have mounts of its own");
        return;
    }
    let exe = env::current_exe().expect("this program");
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", as_other, "sh"])
        .arg(exe)
        .args(["processes::a_process_with_names_of_its_own", "--exact", "--nocapture"])
        .env(HOSTS, hosts.path())
        .output()
        .expect("this program once more");
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success() && said.contains("elsewhere after"), "{said}");
    println!("{said}");
}

/// Does its work only as the other process of the test above.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_names_of_its_own() {
    let Ok(hosts) = env::var(HOSTS) else { return };
    let name = |lines: &str| fs::write(&hosts, format!("127.0.0.1 localhost\n{lines}")).expect("the names");
    name("127.0.0.1 redis.test\n");
    let (first, second) = (Server::start(), Server::start());
    let here = Proxy::start(first.port()).await;
    let there = Proxy::start_at(("127.0.0.2", here.port()), second.port()).await;
    let limiter = open(&format!("redis://redis.test:{}", here.port()));
    assert_well(&limiter).await;
    assert_eq!(calls(&mut second.admin(), "eval"), 0);

    // The name is gone, and with it the connection.
    name("");
    here.cut();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_200) {
        let _ = ask(&limiter, &LOCAL).await;
        sleep(Duration::from_millis(5)).await;
    }
    assert!(ask(&limiter, &LOCAL).await.0.is_degraded());

    name("127.0.0.2 redis.test\n");
    // A look-up that waits for an answer from nobody takes a second to be given up.
    let took = recovers_within(&limiter, Duration::from_millis(2_000)).await;
    println!("elsewhere after {took:?}");
    assert!(calls(&mut second.admin(), "evalsha") > 0);

    // The second one is no primary any more; the name leads back.
    name("127.0.0.1 redis.test\n");
    let before = calls(&mut first.admin(), "evalsha");
    command(&second, "REPLICAOF 127.0.0.1 1");
    assert!(ask(&limiter, &LOCAL).await.0.is_degraded());
    let took = recovers_within(&limiter, Duration::from_secs(1)).await;
    println!("back after {took:?}");
    assert!(calls(&mut first.admin(), "evalsha") > before);
    assert_flat(&first, 0);
    assert_flat(&second, 1);
    there.cut();
    let still = timeout(Duration::from_secs(1), limiter.check(&LOCAL, "user:42")).await.expect("in time");
    assert!(!still.is_degraded());
}
