//! A file that changes while the service runs.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::Router;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tollgate::{
    Config, Quota, RateLimitLayer, Rule,
    config::Watch,
    layer::{global, header},
};

use crate::support::{
    http::{Answer, get, send, serve},
    server::Server,
};

/// A service that follows a file.
struct Service {
    folder: TempDir,
    address: SocketAddr,
    layer: RateLimitLayer,
    watch: Watch,
}

impl Service {
    async fn start(text: &str) -> Self {
        Self::start_with(text, |layer| layer).await
    }

    async fn start_with(text: &str, finish: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("limits.toml"), text).expect("written");
        let config = Config::load(folder.path().join("limits.toml")).expect("right").with_key("user", header("x-user"));
        let layer = finish(RateLimitLayer::from_config(&config).expect("known keys"));
        let watch = layer.watch(&config);
        let address = serve(Router::new().fallback(|| async { "hello" }).layer(layer.clone())).await;
        Self { folder, address, layer, watch }
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("limits.toml")
    }

    /// Writes the file and waits until it has taken effect.
    async fn change(&self, text: &str) {
        let before = self.watch.reloads();
        fs::write(self.file(), text).expect("written");
        self.wait_until(|watch| watch.reloads() > before).await;
    }

    /// Writes the file and waits until it was refused.
    async fn spoil(&self, text: &str) {
        let before = self.watch.refusals();
        fs::write(self.file(), text).expect("written");
        self.wait_until(|watch| watch.refusals() > before).await;
    }

    /// Events of files come by the real clock.
    async fn wait_until(&self, done: impl Fn(&Watch) -> bool) {
        let waiting = async {
            while !done(&self.watch) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), waiting)
            .await
            .unwrap_or_else(|_| panic!("nothing happened: {:?}", self.watch));
    }

    async fn ask(&self, user: &str) -> Answer {
        let request =
            http::Request::get("/").header("x-user", user).body(axum::body::Body::empty()).expect("a request");
        send(self.address, None, request).await
    }

    /// Returns what is left for a user after one more request.
    async fn left(&self, user: &str) -> String {
        let answer = self.ask(user).await;
        let field = answer.text("ratelimit").expect("the field").to_owned();
        field.split("r=").nth(1).and_then(|rest| rest.split(';').next()).expect("units left").to_owned()
    }
}

fn rule(algorithm: &str, quota: &str, cost: u64) -> String {
    format!("[[rule]]\nname = 'r'\nkey = 'user'\nquota = '{quota}'\nalgorithm = '{algorithm}'\ncost = {cost}\n")
}

/// Uses 3 of 5, and looks at what remains of other quotas.
async fn used_units_are_carried_over(store: &str, algorithm: &str, left: [&str; 2]) {
    let text = |quota: &str, cost| format!("{store}\n{}", rule(algorithm, quota, cost));
    let service = Service::start(&text("5/hour", 1)).await;
    for expected in ["4", "3", "2"] {
        assert_eq!(service.left("u").await, expected);
    }
    service.change(&text("10/hour", 0)).await;
    assert_eq!(service.left("u").await, left[0], "{algorithm} {store}: 3 of 5 used, limit now 10");
    service.change(&text("2/hour", 0)).await;
    assert_eq!(service.left("u").await, left[1], "{algorithm} {store}: limit now 2");
}

#[tokio::test]
async fn a_changed_quota_keeps_what_was_used() {
    let server = Server::start();
    let redis = format!("[store]\nurl = '{}'\n", server.url());
    for store in ["", &redis] {
        for algorithm in ["fixed-window", "sliding-window", "sliding-counter"] {
            used_units_are_carried_over(store, algorithm, ["7", "0"]).await;
            redis::cmd("FLUSHALL").query::<()>(&mut server.admin()).expect("FLUSHALL");
        }
        // It keeps the share that is used: 3 of 5 are 6 of 10, and 4 of 2 would be 120 % of it.
        used_units_are_carried_over(store, "token-bucket", ["4", "0"]).await;
        redis::cmd("FLUSHALL").query::<()>(&mut server.admin()).expect("FLUSHALL");
    }
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_mending_it_takes_effect() {
    let good = rule("fixed-window", "5/hour", 1);
    let service = Service::start(&good).await;
    assert_eq!(service.left("u").await, "4");
    service.spoil(&good.replace("fixed-window", "fixd-window")).await;
    assert_eq!((service.left("u").await.as_str(), service.watch.reloads()), ("3", 0));
    service.spoil("").await;
    service.spoil("[[rule]]\nname = 'r'\nkey = 'nobody'\nquota = '1/s'").await;
    service.spoil(&format!("{good}[store]\nprefix = 'other'\n")).await;
    service.spoil(&format!("{good}[store]\nurl = 'redis://127.0.0.1:1'\n")).await;
    service.spoil(&format!("{good}[store]\nkey_secret = 'pepper'\n")).await;
    assert_eq!((service.left("u").await.as_str(), service.watch.refusals()), ("2", 6));
    service.change(&rule("fixed-window", "6/hour", 1)).await;
    assert_eq!(service.left("u").await, "2");
}

#[tokio::test]
async fn a_file_that_goes_and_comes_again_is_followed() {
    let service = Service::start(&rule("fixed-window", "5/hour", 1)).await;
    // As editors do: the new file takes the place of the old.
    let other = service.folder.path().join("limits.toml~");
    fs::write(&other, rule("fixed-window", "7/hour", 1)).expect("written");
    fs::rename(&other, service.file()).expect("renamed");
    service.wait_until(|watch| watch.reloads() == 1).await;
    assert_eq!(service.left("u").await, "6");
    fs::remove_file(service.file()).expect("removed");
    service.wait_until(|watch| watch.refusals() == 1).await;
    assert_eq!(service.left("u").await, "5");
    service.change(&rule("fixed-window", "9/hour", 1)).await;
    assert_eq!(service.left("u").await, "6");
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_that_leads_elsewhere_is_followed() {
    use std::os::unix::fs::symlink;

    // As Kubernetes mounts a ConfigMap: the file is a link through `..data`, which is replaced by a rename.
    let folder = tempfile::tempdir().expect("a folder");
    let version = |name: &str, quota: &str| {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        fs::write(folder.path().join(name).join("limits.toml"), rule("fixed-window", quota, 1)).expect("written");
    };
    let lead_to = |name: &str| {
        symlink(name, folder.path().join("..data_tmp")).expect("a link");
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).expect("renamed");
    };
    version("..1", "5/hour");
    lead_to("..1");
    symlink("..data/limits.toml", folder.path().join("limits.toml")).expect("a link");
    // And by way of another link from elsewhere.
    let outside = tempfile::tempdir().expect("a folder");
    symlink(folder.path(), outside.path().join("current")).expect("a link");
    for path in [folder.path().join("limits.toml"), outside.path().join("current/limits.toml")] {
        let config = Config::load(&path).expect("right").with_key("user", global());
        let layer = RateLimitLayer::from_config(&config).expect("known keys");
        let watch = layer.watch(&config);
        let name = format!("..{}", fs::read_dir(folder.path()).expect("a folder").count());
        version(&name, "9/hour");
        lead_to(&name);
        let waiting = async {
            while watch.reloads() == 0 {
                // Events of files come by the real clock.
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), waiting)
            .await
            .unwrap_or_else(|_| panic!("{} is not followed", path.display()));
        fs::write(path, rule("fixed-window", "5/hour", 1)).expect("written");
    }
}

#[tokio::test]
async fn rules_of_the_code_stay_and_those_of_the_file_come_and_go() {
    let first = "[[rule]]\nname = 'a'\nquota = '5/hour'\n[[rule]]\nname = 'b'\nquota = '5/hour'\n";
    let code = Rule::new("code", Quota::per_hour(9)).fixed_window().by(global());
    let service = Service::start_with(first, |layer| layer.rule(code)).await;
    let policies = async || service.ask("u").await.text("ratelimit-policy").expect("the field").to_owned();
    assert_eq!(policies().await, r#""a";q=5;w=3600, "b";q=5;w=3600, "code";q=9;w=3600"#);
    service.change("[[rule]]\nname = 'b'\nquota = '6/hour'\n").await;
    assert_eq!(policies().await, r#""b";q=6;w=3600, "code";q=9;w=3600"#);
    service.spoil("[[rule]]\nname = 'code'\nquota = '6/hour'\n").await;
    service.change(first).await;
    assert_eq!(policies().await, r#""a";q=5;w=3600, "b";q=5;w=3600, "code";q=9;w=3600"#);
    service.change("rules = []").await;
    assert_eq!(policies().await, r#""code";q=9;w=3600"#);
    // The name is free again.
    assert!(service.layer.clone().try_rule(Rule::new("a", Quota::per_hour(1))).is_ok());
}

#[tokio::test]
async fn a_rule_that_comes_again_goes_on_and_another_name_or_algorithm_begins_anew() {
    let rule = |name: &str, algorithm: &str| {
        format!("[[rule]]\nname = '{name}'\nkey = 'user'\nquota = '5/hour'\nalgorithm = '{algorithm}'\n")
    };
    let service = Service::start(&rule("a", "fixed-window")).await;
    assert_eq!([service.left("u").await, service.left("u").await], ["4", "3"]);
    service.change("rules = []").await;
    service.change(&rule("a", "fixed-window")).await;
    assert_eq!(service.left("u").await, "2", "removed and added again");
    service.change(&rule("b", "fixed-window")).await;
    assert_eq!(service.left("u").await, "4", "renamed");
    service.change(&rule("b", "sliding-window")).await;
    assert_eq!(service.left("u").await, "4", "counted in another way");
    service.change(&rule("b", "fixed-window")).await;
    assert_eq!(service.left("u").await, "3", "the old state was left where it was");
}

#[tokio::test]
async fn no_request_fails_while_the_file_changes() {
    let service = Service::start(&rule("token-bucket", "1000000/hour", 1)).await;
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stop, served, address) = (Arc::clone(&stop), Arc::clone(&served), service.address);
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(get(address, "/").await.status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for change in 0..5 {
        let algorithm = ["fixed-window", "sliding-window", "token-bucket"][change % 3];
        service.change(&rule(algorithm, &format!("{}/hour", 100_000 + change), 1)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("all were served");
    }
    assert!(served.load(Ordering::Relaxed) > 100, "{served:?}");
}

#[tokio::test]
async fn a_dropped_watch_follows_no_longer() {
    let Service { folder, address, watch, .. } = Service::start(&rule("fixed-window", "5/hour", 1)).await;
    drop(watch);
    fs::write(folder.path().join("limits.toml"), rule("fixed-window", "9/hour", 1)).expect("written");
    // Longer than a change takes to be seen, by events and without.
    sleep(Duration::from_millis(1_300)).await;
    assert!(get(address, "/").await.text("ratelimit-policy").expect("the field").contains("q=5"));
}

#[tokio::test]
async fn options_change_too() {
    let service = Service::start(&rule("fixed-window", "5/hour", 1)).await;
    assert!(service.ask("u").await.text("x-ratelimit-limit").is_none());
    service.change(&format!("[headers]\ndialect = 'x-ratelimit'\n{}", rule("fixed-window", "5/hour", 1))).await;
    assert_eq!(service.ask("u").await.text("x-ratelimit-limit"), Some("5"));
    service.change(&rule("fixed-window", "5/hour", 1)).await;
    assert!(service.ask("u").await.text("x-ratelimit-limit").is_none());
}

#[tokio::test]
async fn a_refusal_that_is_remembered_does_not_outlive_a_change() {
    let server = Server::start();
    let text = |burst: u32| {
        format!(
            "[store]\nurl = '{}'\ndeny_max_age = '60s'\n[[rule]]\nname = 'r'\nkey = 'user'\nquota = '1/hour'\nburst = {burst}",
            server.url()
        )
    };
    let service = Service::start(&text(1)).await;
    let statuses = async || [service.ask("u").await.status.as_u16(), service.ask("u").await.status.as_u16()];
    assert_eq!(statuses().await, [200, 429]);
    service.change(&text(3)).await;
    assert_eq!(statuses().await, [200, 200]);
}

#[test]
fn a_text_is_not_followed() {
    let config = Config::parse("rules = []", tollgate::config::Format::Toml).expect("right");
    let watch = RateLimitLayer::from_config(&config).expect("no keys").watch(&config);
    assert_eq!((watch.reloads(), watch.refusals()), (0, 0));
    assert!(Path::new("limits.toml").parent().is_some());
}
