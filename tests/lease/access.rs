//! All that leases ask of a server, by the user that the README makes.

use tollgate::{Redis, lease::Lock};

use super::{coordination::all_of_it_works, ms, sleep, soon};
use crate::support::{assert_all_keys_expire, server::Server};

#[tokio::test]
async fn the_user_that_the_readme_makes_can_hold_and_wait() {
    let server = Server::start();
    let line = include_str!("../../README.md").lines().find(|line| line.starts_with("ACL SETUSER ")).expect("a line");
    let words: Vec<&str> = line.split(' ').collect();
    let _: () = redis::cmd(words[0]).arg(&words[1..]).query(&mut server.admin()).expect("ACL SETUSER");
    let url = format!("redis://tollgate:a-long-password@127.0.0.1:{}", server.port());
    let [one, other] = [(); 2].map(|()| Redis::open(&url).expect("an address"));
    for fair in [false, true] {
        let lock = |store| {
            let lock = Lock::new(store, if fair { "fair" } else { "x" }).ttl(ms(200));
            if fair { lock.fair() } else { lock }
        };
        let guard = lock(&one).acquire().await.expect("held");
        let next = lock(&other);
        let waiter = tokio::spawn(async move { soon(next.acquire()).await });
        sleep(ms(150)).await;
        assert!(lock(&one).holder().await.expect("an answer").is_some());
        guard.release().await.expect("an answer");
        let held = waiter.await.expect("no panic").expect("free");
        assert!(lock(&one).force_release().await.expect("an answer"));
        drop(held);
    }
    assert_all_keys_expire(&mut server.admin());
    let refused: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut server.admin()).expect("ACL LOG");
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_coordinated_works_without_the_right_to_channels() {
    let server = Server::start();
    let rights: &[&str] = &["SETUSER", "u", "on", "nopass", "resetchannels", "~*", "+@all"];
    let _: () = redis::cmd("ACL").arg(rights).query(&mut server.admin()).expect("ACL SETUSER");
    let url = format!("redis://u:any@127.0.0.1:{}", server.port());
    let [one, other] = [(); 2].map(|()| Redis::open(&url).expect("an address"));
    all_of_it_works(&one, &other, "x").await;
    assert_all_keys_expire(&mut server.admin());
}
