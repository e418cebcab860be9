//! Answers that are lost, or come late.

use std::time::Duration;

use tokio::{runtime::Handle, task::block_in_place, time::sleep};
use tollgate::{Demand, Limiter, Policy, Quota};

use crate::{
    open,
    proxy::{Mood, Proxy},
    support::{
        assert_all_keys_expire, calls,
        cluster::{Cluster, bucket_of},
    },
};

/// A cluster whose first node can be reached through a proxy alone, as far as its clients know.
fn start() -> (Cluster, Proxy) {
    let mut proxy = None;
    let cluster = Cluster::start_with(3, 0, &[], |server| {
        if proxy.is_some() {
            return None;
        }
        let started = block_in_place(|| Handle::current().block_on(Proxy::start(server.port())));
        let port = started.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        proxy = Some(started);
        port
    });
    (cluster, proxy.expect("the first node has one"))
}

async fn used(limiter: &Limiter, policy: &Policy, subject: &str) -> u64 {
    let decision = limiter.peek(policy, subject).await;
    assert!(!decision.is_degraded(), "{decision:?}");
    policy.capacity() - decision.remaining().expect("it is known")
}

async fn well_again(limiter: &Limiter, policy: &Policy, subject: &str) {
    let mut tries = 0;
    while limiter.peek(policy, subject).await.is_degraded() {
        tries += 1;
        assert!(tries < 300, "it does not recover");
        // Real time: a new connection is made.
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_after_the_write_is_charged_once() {
    let (cluster, proxy) = start();
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.masters[1].port());
    let quota = Quota::per_day(1_000);
    // Of two subjects the one in the lower bucket is charged first.
    let behind = cluster.subject_of(0, 3);
    let is_first = |subject: &String| bucket_of(subject) < bucket_of(&behind);
    let well = (0..).map(|i| cluster.subject_of(1, i)).find(is_first).expect("there are lower buckets");
    for policy in [
        Policy::fixed_window("fixed", quota),
        Policy::sliding_window("sliding", quota),
        Policy::token_bucket("bucket", quota),
    ] {
        let limiter = open(&url);
        let ask = async |subjects: &[&String]| {
            let demands: Vec<_> = subjects.iter().map(|subject| Demand::new(&policy, *subject)).collect();
            limiter.decide(&demands).await.0
        };
        assert!(!ask(&[&behind, &well]).await.is_degraded());
        assert!(calls(&mut cluster.masters[0].admin(), "evalsha") > 0);

        proxy.be(Mood::DropsReplies);
        for _ in 0..2 {
            assert!(ask(&[&behind]).await.is_degraded());
        }
        assert!(!ask(&[&well]).await.is_degraded());
        proxy.cut();
        proxy.be(Mood::Passes);
        well_again(&limiter, &policy, &behind).await;
        assert_eq!(used(&limiter, &policy, &behind).await, 1 + 2, "{}", policy.name());
        assert_eq!(used(&limiter, &policy, &well).await, 1 + 1);

        // Of two nodes one loses the answer: what the other one was charged is given back, and it is charged once.
        proxy.be(Mood::DropsReplies);
        assert!(ask(&[&behind, &well]).await.is_degraded());
        proxy.cut();
        proxy.be(Mood::Passes);
        well_again(&limiter, &policy, &behind).await;
        assert_eq!(used(&limiter, &policy, &behind).await, 3 + 1);
        assert_eq!(used(&limiter, &policy, &well).await, 2);

        // The answer comes after the request has gone: all of it is given back.
        proxy.delay(Duration::from_millis(200));
        assert!(ask(&[&behind, &well]).await.is_degraded());
        proxy.delay(Duration::ZERO);
        // Real time: what came late and what is given back have to arrive.
        sleep(Duration::from_millis(500)).await;
        well_again(&limiter, &policy, &behind).await;
        assert_eq!(used(&limiter, &policy, &behind).await, 4, "{}", policy.name());
        assert_eq!(used(&limiter, &policy, &well).await, 2);
    }
    cluster.masters.iter().for_each(|server| assert_all_keys_expire(&mut server.admin()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_the_middle_of_an_answer_is_charged_once_and_made_anew() {
    let (cluster, proxy) = start();
    let policy = Policy::fixed_window("fixed", Quota::per_day(1_000));
    let limiter = open(&format!("redis+cluster://127.0.0.1:{}", cluster.masters[1].port()));
    let subject = cluster.subject_of(0, 0);
    assert!(!limiter.check(&policy, &subject).await.is_degraded());
    for cuts in 1..=5 {
        proxy.cut_next_reply();
        assert!(limiter.check(&policy, &subject).await.is_degraded());
        well_again(&limiter, &policy, &subject).await;
        assert_eq!(used(&limiter, &policy, &subject).await, 1 + cuts);
    }
}
