//! Users with the least rights, passwords, databases and Unix sockets.

use std::{collections::BTreeSet, time::Duration};

use tollgate::{Demand, Limiter, Quota, Redis, limit::Store};

use super::{limiter_at, policies};
use crate::support::{assert_all_keys_expire, server::Server};

/// Returns the words of the one line in the README that makes a user.
pub(super) fn acl_line() -> Vec<&'static str> {
    let mut lines = include_str!("../../README.md").lines().filter(|line| line.starts_with("ACL SETUSER "));
    let line = lines.next().expect("a line that makes a user");
    assert_eq!(lines.next(), None);
    line.split(' ').collect()
}

fn run(admin: &mut redis::Connection, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query(admin).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Does everything that a limiter can ask of a server; nothing of it may fail.
pub(super) async fn use_all(limiter: &Limiter) {
    let policies = policies(Quota::per_hour(20));
    for policy in &policies {
        let (decision, charge) = limiter.decide(&[Demand::new(policy, "user:42").cost(5)]).await;
        assert!(decision.is_allowed() && !decision.is_degraded(), "{decision:?}");
        charge.settle(2).await.expect("settled");
        let (_, charge) = limiter.decide(&[Demand::new(policy, "user:42").cost(2)]).await;
        charge.settle(6).await.expect("settled");
        assert_eq!(limiter.peek(policy, "user:42").await.remaining(), Some(12), "{}", policy.name());
        while limiter.check(policy, "user:42").await.is_allowed() {}

        // Many that wait together, of which some pass.
        let one = || {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            async move { limiter.check(&policy, "user:43").await }
        };
        let decisions = (0..30).map(|_| one()).collect::<tokio::task::JoinSet<_>>().join_all().await;
        assert!(decisions.iter().all(|decision| !decision.is_degraded()));
        assert_eq!(decisions.iter().filter(|decision| decision.is_allowed()).count(), 20, "{}", policy.name());
    }
    // Several at once: all or nothing, and what was charged for nothing is taken back.
    let demands = policies.each_ref().map(|policy| Demand::new(policy, "user:44").cost(15));
    assert!(limiter.decide(&demands).await.0.is_allowed());
    let mixed = [Demand::new(&policies[1], "user:45"), Demand::new(&policies[2], "user:44").cost(15)];
    assert!(!limiter.decide(&mixed).await.0.is_allowed());
    assert_eq!(limiter.peek(&policies[1], "user:45").await.remaining(), Some(20));
    for policy in &policies {
        limiter.block(policy, "user:46", Duration::from_secs(60)).await.expect("blocked");
        assert!(!limiter.check(policy, "user:46").await.is_allowed());
        limiter.unblock(policy, "user:46").await.expect("unblocked");
        assert!(limiter.check(policy, "user:46").await.is_allowed());
        limiter.reset(policy, "user:42").await.expect("reset");
        assert_eq!(limiter.peek(policy, "user:42").await.remaining(), Some(20), "{}", policy.name());
    }
}

#[tokio::test]
async fn the_user_that_the_readme_makes_can_do_all_that_we_ask() {
    let server = Server::start();
    let mut admin = server.admin();
    run(&mut admin, &acl_line());
    let limiter = limiter_at(&format!("redis://tollgate:a-long-password@127.0.0.1:{}", server.port()));
    use_all(&limiter).await;
    // A script that is lost is brought again.
    run(&mut admin, &["FLUSHALL"]);
    run(&mut admin, &["SCRIPT", "FLUSH"]);
    use_all(&limiter).await;
    assert_all_keys_expire(&mut admin);
    // Whatever was refused to anybody, a greeting included, stands in this log.
    let refused: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut admin).expect("ACL LOG");
    assert!(refused.is_empty(), "{refused:?}");
}

/// What a script does once in a blue moon needs its right, too, and no right is there for nothing.
#[test]
fn the_user_that_the_readme_makes_has_the_rights_to_what_the_scripts_call_and_no_other() {
    let line = acl_line();
    let has: BTreeSet<String> =
        line.iter().filter_map(|word| word.strip_prefix('+')).map(str::to_ascii_uppercase).collect();
    let own = ["EVALSHA", "EVAL", "DEL", "SUBSCRIBE", "UNSUBSCRIBE"];
    let mut needs: BTreeSet<String> = own.map(str::to_owned).into();
    let scripts = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/redis/lua")).expect("a folder");
    for script in scripts {
        let script = std::fs::read_to_string(script.expect("a file").path()).expect("a script");
        needs.extend(script.split("call('").skip(1).filter_map(|rest| rest.split('\'').next()).map(str::to_owned));
    }
    assert_eq!(has, needs);
    assert!(!line.iter().any(|word| word.contains("@all") || word.contains("allcommands") || *word == "~*"));
}

#[tokio::test]
async fn a_password_that_becomes_right_is_used_without_a_restart() {
    let server = Server::start();
    let mut admin = server.admin();
    run(&mut admin, &acl_line());
    run(&mut admin, &["ACL", "SETUSER", "tollgate", "resetpass", ">old-one"]);
    let redis = Redis::open(&format!("redis://tollgate:new-one@127.0.0.1:{}", server.port())).expect("an address");
    let policy = &policies(Quota::per_hour(20))[0];
    let error = redis.decide(&[Demand::new(policy, "user:42")]).await.expect_err("a wrong password");
    let said = format!("{error:?}");
    assert!(error.is_transient() && said.to_lowercase().contains("password"), "{said}");
    assert!(!said.contains("new-one") && !said.contains("old-one"), "{said}");
    assert!(!format!("{redis:?}").contains("new-one"));

    run(&mut admin, &["ACL", "SETUSER", "tollgate", "resetpass", ">new-one"]);
    let mut tries = 0;
    while redis.decide(&[Demand::new(policy, "user:42")]).await.is_err() {
        tries += 1;
        assert!(tries < 150, "still not let in");
        // Real time, since a real server is asked again after a pause.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the databases of a server that have keys.
fn keyspace(server: &Server, user_info: &str) -> Vec<String> {
    let info: String = redis::cmd("INFO").arg("keyspace").query(&mut server.admin_as(user_info)).expect("INFO");
    info.lines().filter_map(|line| line.split_once(":keys=")).map(|(database, _)| database.to_owned()).collect()
}

#[tokio::test]
async fn a_database_is_chosen_by_its_number() {
    let server = Server::start();
    let limiter = limiter_at(&format!("{}/3", server.url()));
    use_all(&limiter).await;
    assert_eq!(keyspace(&server, ""), ["db3"]);

    let missing = Redis::open(&format!("{}/99", server.url())).expect("an address");
    let policy = &policies(Quota::per_hour(20))[0];
    let error = missing.decide(&[Demand::new(policy, "user:42")]).await.expect_err("no such database");
    assert!(format!("{error:?}").to_lowercase().contains("database"), "{error:?}");
}

#[tokio::test]
async fn a_unix_socket_is_an_address_too() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("redis.sock");
    let path = socket.to_str().expect("plain text");
    let mut server = Server::start_with(&["--unixsocket", path]);
    run(&mut server.admin(), &["CONFIG", "SET", "requirepass", "right"]);
    for (scheme, database) in [("unix", 1), ("redis+unix", 2), ("valkey+unix", 3)] {
        let limiter = limiter_at(&format!("{scheme}://{path}?db={database}&pass=right"));
        use_all(&limiter).await;
    }
    assert_eq!(keyspace(&server, ":right@"), ["db1", "db2", "db3"]);

    let limiter = limiter_at(&format!("unix://{path}"));
    let policy = &policies(Quota::per_hour(20))[0];
    assert!(limiter.check(policy, "user:42").await.is_unavailable(), "the password is missing");
    server.kill();
    let redis = Redis::open(&format!("unix://{path}.gone")).expect("an address");
    let error = redis.decide(&[Demand::new(policy, "user:42")]).await.expect_err("no server");
    assert!(format!("{error:?}").contains("cannot connect"), "{error:?}");
}
