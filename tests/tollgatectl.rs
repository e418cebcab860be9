//! The tool for who is on call, as a program of its own, against real servers.

mod support;

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use axum::{body::Body, http::Request};
use serde_json::Value;
use support::{example::Example, http::send, server::Server};
use tempfile::TempDir;
use tollgate::{
    Redis,
    lease::{Claims, Lock, Semaphore},
};

const TOKEN: &str = "a-token-for-the-test-of-the-tool";

/// The tool, with what is always said to it; `None` if it was not built, as by `cargo test --test NAME` alone.
struct Tool {
    program: PathBuf,
    always: Vec<String>,
}

impl Tool {
    fn new<A: Into<String>>(always: impl IntoIterator<Item = A>) -> Option<Self> {
        let program = env::current_exe().ok()?.parent()?.parent()?.join("examples").join("tollgatectl");
        if !program.exists() {
            println!("skipped: the example `tollgatectl` is not built");
            return None;
        }
        Some(Self { program, always: always.into_iter().map(Into::into).collect() })
    }

    /// Runs it beside this test's own tasks, and returns its exit code and what it has said.
    async fn run(&self, words: &[&str]) -> (i32, String) {
        let mut command = Command::new(&self.program);
        command.args(&self.always).args(words).env("TOLLGATE_ADMIN_TOKEN", TOKEN).env("TOLLGATE_KEY_SECRET", "pepper");
        let output: Output =
            tokio::task::spawn_blocking(move || command.output().expect("the tool runs")).await.expect("no panic");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().expect("a code"), String::from_utf8(said).expect("text"))
    }

    async fn json(&self, words: &[&str]) -> (i32, Value) {
        let (code, said) = self.run(&[&["--json"], words].concat()).await;
        (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
    }
}

fn config(redis: &Server) -> (TempDir, String) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("tollgate.toml");
    let text = format!(
        r#"
[store]
url        = "{}"
key_secret = "${{TOLLGATE_KEY_SECRET}}"

[[rule]]
name      = "per-user"
quota     = "3/day"
key       = "header:x-user"
algorithm = "fixed-window"

[[rule]]
name      = "per-key"
quota     = "5/day"
key       = "header:x-api-key"
algorithm = "fixed-window"
"#,
        redis.url()
    );
    fs::write(&file, text).expect("a file");
    (folder, file.to_str().expect("a path").to_owned())
}

async fn ask(server: &Example, user: &str) -> u16 {
    let request = Request::get("/").header("x-user", user).header("x-api-key", "hunter2");
    send(server.address, None, request.body(Body::empty()).expect("a request")).await.status.as_u16()
}

#[tokio::test]
async fn keys_are_looked_at_and_changed_on_the_store_of_a_service() {
    let redis = Server::start();
    let (_folder, file) = config(&redis);
    let Some(tool) = Tool::new(["--config", &file]) else { return };
    let Some(service) = Example::start("axum", ["--config", &file]) else { return };
    assert_eq!(tool.run(&["peek", "per-user", "ada"]).await.0, 0);
    for expected in [200, 200, 200, 429] {
        assert_eq!(ask(&service, "ada").await, expected);
    }
    let (code, told) = tool.run(&["peek", "per-user", "ada"]).await;
    assert!(code == 1 && told.contains("0 of 3") && told.contains("refused, passes in "), "{told}");
    let (code, told) = tool.json(&["explain", "ada"]).await;
    let [rule, other] = [&told["rules"][0], &told["rules"][1]];
    assert_eq!((code, rule["passes"].as_bool(), other["passes"].as_bool()), (1, Some(false), Some(true)));
    assert!(rule["passes_in_ms"].as_u64().is_some_and(|wait| wait > 86_000_000), "{told}");
    let secret = tool.json(&["--secret", "peek", "per-key", "hunter2"]).await;
    assert_eq!((secret.0, secret.1["rules"][0]["remaining"].as_u64()), (0, Some(2)), "{}", secret.1);
    assert!(secret.1["key"].as_str().is_some_and(|key| key.starts_with('~')));

    assert_eq!(tool.run(&["reset", "per-user", "ada"]).await, (0, "ada is reset under per-user\n".to_owned()));
    // Another process remembers its refusals for up to a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ask(&service, "ada").await, 200);
    let blocked = tool.json(&["block", "per-user", "eve", "15m"]).await;
    assert_eq!((blocked.0, blocked.1["for_ms"].as_u64()), (0, Some(900_000)));
    assert_eq!(ask(&service, "eve").await, 429);
    let (code, told) = tool.run(&["peek", "per-user", "eve"]).await;
    assert!(code == 1 && told.contains("blocked, passes in 1"), "{told}");
    assert_eq!(tool.run(&["unblock", "per-user", "eve"]).await.0, 0);
    assert_eq!(tool.run(&["peek", "per-user", "eve"]).await.0, 0);
}

#[tokio::test]
async fn the_figures_of_several_processes_are_summed() {
    let redis = Server::start();
    let (_folder, file) = config(&redis);
    let start = || Example::start("axum", ["--config", file.as_str(), "--admin", TOKEN]);
    let (Some(one), Some(mut two)) = (start(), start()) else { return };
    let url = |example: &Example| format!("http://{}/admin", example.address);
    let Some(tool) = Tool::new(["--admin".to_owned(), url(&one), "--admin".to_owned(), url(&two)]) else { return };
    // Three pass, in both together; the rest is refused, two by each.
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(ask(&one, "mallory").await);
        answers.push(ask(&two, "mallory").await);
    }
    for service in [&one, &two] {
        answers.push(ask(service, "mallory").await);
    }
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 3, "{answers:?}");
    let (code, told) = tool.json(&["top"]).await;
    assert_eq!((code, told["processes"].as_u64()), (0, Some(2)));
    assert_eq!((told["refused"][0]["key"].as_str(), told["refused"][0]["count"].as_u64()), (Some("mallory"), Some(3)));
    let (code, told) = tool.run(&["top"]).await;
    assert!(code == 0 && told.contains("3  mallory  per-user"), "{told}");

    // Two rounds, between which one request passes.
    let watch = ["--json", "--times", "2", "--interval", "500ms", "watch"];
    let (watched, ()) = tokio::join!(tool.run(&watch), async {
        tokio::time::sleep(Duration::from_millis(250)).await; // between the rounds of another program
        assert_eq!(ask(&one, "ada").await, 200);
    });
    assert_eq!(watched.0, 0, "{}", watched.1);
    let rounds: Vec<Value> = watched.1.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rule = |round: usize, place: &str| {
        let rules = rounds[round]["rules"].as_array().expect("rules").clone();
        rules.into_iter().find(|rule| rule["name"] == "per-user").expect("the rule")[place].clone()
    };
    assert_eq!((rounds.len(), rule(1, "counts")["allowed"].as_u64()), (2, Some(4)));
    assert_eq!(rule(1, "counts")["refused"], 3);
    assert_eq!(rule(0, "milli_per_second")["allowed"], Value::Null, "nothing is known of a time before the first");
    let (code, told) = tool.run(&["--times", "1", "watch"]).await;
    assert!(
        code == 0 && told.starts_with("2 processes\n") && !told.contains('\x1b'),
        "no terminal, no colours: {told}"
    );

    // One is gone: the others are told of, and the exit code says that somebody is missing.
    two.kill();
    let (code, told) = tool.run(&["--times", "1", "watch"]).await;
    assert!(code == 3 && told.starts_with("1 processes\n") && told.contains(&url(&two)), "{told}");
}

#[tokio::test]
async fn holders_and_dead_letters_are_told() {
    let server = Server::start();
    let redis = Redis::open(&server.url()).expect("an address").prefix("shop").expect("a prefix");
    let Some(tool) = Tool::new(["--redis", &server.url(), "--prefix", "shop"]) else { return };
    assert_eq!(tool.run(&["holders", "order:7"]).await, (1, "nobody holds order:7\n".to_owned()));
    let guard = Lock::new(&redis, "order:7").label("worker 3").acquire().await.expect("it is free");
    let (code, told) = tool.json(&["holders", "order:7"]).await;
    assert_eq!((code, told["holders"][0]["label"].as_str()), (0, Some("worker 3")));
    assert_eq!(told["holders"][0]["fence"].as_u64(), guard.fence().map(u64::from));
    let (code, told) = tool.run(&["holders", "order:7"]).await;
    assert!(code == 0 && told.contains("worker 3"), "{told}");
    let permit = Semaphore::new(&redis, "mails", 2).expect("permits").acquire().await.expect("one is free");
    let (code, told) = tool.json(&["--permits", "2", "holders", "mails"]).await;
    assert_eq!((code, told["holders"].as_array().map(Vec::len)), (0, Some(1)), "{told}");
    drop((guard, permit));

    let jobs = Claims::new(&redis, "jobs");
    assert_eq!(tool.run(&["dead", "jobs"]).await, (0, "no dead letters in jobs\n".to_owned()));
    jobs.push(b"to \x1b[31muser:42").await.expect("pushed");
    jobs.claim().await.expect("a job").bury("the address is gone").await.expect("buried");
    let (code, told) = tool.json(&["dead", "jobs"]).await;
    assert_eq!((code, told["dead"][0]["reason"].as_str()), (1, Some("the address is gone")));
    let (code, told) = tool.run(&["dead", "jobs"]).await;
    assert!(code == 1 && told.contains("the address is gone") && !told.contains('\x1b'), "{told}");
}

#[tokio::test]
async fn what_is_wrong_is_told_by_exit_code_and_in_words() {
    let mut redis = Server::start();
    let (_folder, file) = config(&redis);
    let Some(tool) = Tool::new(Vec::<String>::new()) else { return };
    let (code, help) = tool.run(&["--help"]).await;
    assert!(code == 0 && help.contains("Exit codes:"), "{help}");
    for (words, told) in [
        (vec![], "no command"),
        (vec!["frob"], "is no command"),
        (vec!["--frob"], "invalid option '--frob'"),
        (vec!["peek", "per-user", "ada"], "--config FILE"),
        (vec!["--config", "/nowhere.toml", "explain", "ada"], "/nowhere.toml"),
        (vec!["--config", &file, "peek", "per-usr", "ada"], "there are: per-user, per-key"),
        (vec!["--config", &file, "block", "per-user", "ada", "soon"], "such as 15m"),
        (vec!["holders", "x"], "--redis URL"),
        (vec!["top"], "--admin URL"),
    ] {
        let (code, said) = tool.run(&words).await;
        assert!(code == 2 && said.contains(told), "{words:?}: {code} {said}");
    }
    redis.kill();
    for words in [vec!["explain", "ada"], vec!["reset", "per-user", "ada"]] {
        let (code, said) = tool.run(&[vec!["--config", &file], words].concat()).await;
        assert_eq!(code, 3, "{said}");
    }
    let (code, said) = tool.run(&["--admin", "http://127.0.0.1:9", "top"]).await;
    assert!(code == 3 && said.contains("127.0.0.1:9"), "{said}");
}
