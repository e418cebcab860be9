//! Each choice under each fault: all that a caller sees is what its policy asked for, in time, and nothing is charged
//! that nobody asked for.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    ALLOW, DENY, LOCAL, SLACK, ask, assert_flat, assert_well, open,
    proxy::{Mood, Proxy},
    recovers_within, signal,
    support::server::Server,
    used,
};

/// A server behind a proxy, and a connection to it that was there before the fault.
struct Scene {
    server: Server,
    proxy: Proxy,
    admin: redis::Connection,
}

impl Scene {
    fn run(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut self.admin).expect("a command of ours");
    }
}

/// Asserts what is promised from before a fault begins until after it has ended.
async fn each_choice_is_kept(begin: impl FnOnce(&mut Scene), end: impl FnOnce(&mut Scene)) {
    let server = Server::start();
    let (proxy, admin) = (Proxy::start(server.port()).await, server.admin());
    let mut scene = Scene { server, proxy, admin };
    let limiter = open(&scene.proxy.url());
    assert_well(&limiter).await;
    let policies = [&LOCAL, &ALLOW, &DENY];
    let (mut exact, mut degraded) = ([0; 3], [0; 3]);
    let mut count = async |rounds| {
        for _ in 0..rounds {
            for (i, policy) in policies.iter().enumerate() {
                // Looks at what came of it, by the policy's choice.
                let (decision, _) = ask(&limiter, policy).await;
                let of = if decision.is_degraded() { &mut degraded } else { &mut exact };
                of[i] += 1;
            }
            // Real time: a fault has to last.
            sleep(Duration::from_millis(10)).await;
        }
        (exact, degraded)
    };
    let (before, _) = count(3).await;
    let charged_before = used(&limiter, &LOCAL).await;
    assert_eq!(charged_before, before[0]);
    begin(&mut scene);
    let (exact, degraded) = count(30).await;
    assert!(degraded.iter().all(|degraded| *degraded > 5), "{degraded:?}");
    end(&mut scene);
    recovers_within(&limiter, Duration::from_millis(1_750) + SLACK).await;
    assert_well(&limiter).await;
    // What the server decided was charged once; what it did not decide may have been, and no more than once.
    let charged = used(&limiter, &ALLOW).await;
    assert!((exact[1]..=exact[1] + degraded[1]).contains(&charged), "{charged} of {exact:?} and {degraded:?}");
    assert_flat(&scene.server, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_server_that_is_stopped() {
    each_choice_is_kept(|scene| signal(&scene.server, "STOP"), |scene| signal(&scene.server, "CONT")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_network_that_swallows_what_is_said() {
    each_choice_is_kept(|scene| scene.proxy.be(Mood::Swallows), |scene| scene.proxy.be(Mood::Passes)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_network_that_swallows_what_is_answered() {
    each_choice_is_kept(|scene| scene.proxy.be(Mood::DropsReplies), |scene| scene.proxy.be(Mood::Passes)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_server_that_is_made_a_replica() {
    each_choice_is_kept(|scene| scene.run("REPLICAOF 127.0.0.1 1"), |scene| scene.run("REPLICAOF NO ONE")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_server_that_is_out_of_memory() {
    each_choice_is_kept(|scene| scene.run("CONFIG SET maxmemory 1"), |scene| scene.run("CONFIG SET maxmemory 0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_rights_that_are_taken_away() {
    each_choice_is_kept(
        |scene| scene.run("ACL SETUSER default -eval -evalsha"),
        |scene| scene.run("ACL SETUSER default +@all"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_password_that_is_changed() {
    let begin = |scene: &mut Scene| {
        scene.run("CONFIG SET requirepass new");
        scene.proxy.cut();
    };
    let end = |scene: &mut Scene| {
        let _: () = redis::cmd("CONFIG").arg(&["SET", "requirepass", ""]).query(&mut scene.admin).expect("CONFIG SET");
    };
    each_choice_is_kept(begin, end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_server_that_takes_no_more_clients() {
    let begin = |scene: &mut Scene| {
        scene.run("CONFIG SET maxclients 1");
        scene.proxy.cut();
    };
    each_choice_is_kept(begin, |scene| scene.run("CONFIG SET maxclients 1000")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_server_that_pauses_what_writes() {
    each_choice_is_kept(|scene| scene.run("CLIENT PAUSE 60000 WRITE"), |scene| scene.run("CLIENT UNPAUSE")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_a_network_that_half_closes_connections() {
    each_choice_is_kept(|scene| scene.proxy.be(Mood::HalfCloses), |scene| scene.proxy.be(Mood::Passes)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_an_address_at_which_nobody_is() {
    let begin = |scene: &mut Scene| {
        scene.proxy.lead_to(1);
        scene.proxy.cut();
    };
    each_choice_is_kept(begin, |scene| scene.proxy.lead_to(scene.server.port())).await;
}
