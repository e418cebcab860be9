//! What processes tell by their admin routers, summed.

use std::{collections::BTreeMap, env, fs, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};

use crate::{Failure, args::Args, show};

/// Tells which keys are refused most, in all processes together.
pub(crate) async fn top(args: &Args) -> Result<bool, Failure> {
    let (states, silent) = ask_all(args).await?;
    let sum = |list: &str| {
        let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
        for entry in states.iter().flatten().flat_map(|state| state[list].as_array().into_iter().flatten()) {
            let name = (text(&entry["rule"]), text(&entry["key"]));
            *sums.entry(name).or_default() += entry["count"].as_u64().unwrap_or(0);
        }
        let mut most: Vec<_> = sums.into_iter().map(|((rule, key), count)| (rule, key, count)).collect();
        most.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
        most.truncate(args.most);
        most
    };
    let (refused, shadow) = (sum("refused"), sum("shadow_refused"));
    if args.json {
        let list = |most: &[(String, String, u64)]| {
            let entry =
                |(rule, key, count): &(String, String, u64)| json!({ "rule": rule, "key": key, "count": count });
            most.iter().map(entry).collect::<Vec<_>>()
        };
        let told = json!({
            "processes": states.iter().flatten().count(),
            "silent": silent,
            "refused": list(&refused),
            "shadow_refused": list(&shadow),
        });
        show::print(&format!("{told}\n"))?;
    } else {
        let rows = |most: &[(String, String, u64)]| {
            let row = |(rule, key, count): &(String, String, u64)| vec![count.to_string(), key.clone(), rule.clone()];
            most.iter().map(row).collect::<Vec<_>>()
        };
        let mut told = show::table(&["refused", "key", "rule"], &rows(&refused));
        if !shadow.is_empty() {
            told += &format!("\n{}", show::table(&["would be", "key", "rule in the shadow"], &rows(&shadow)));
        }
        show::print(&told)?;
    }
    finish(&silent)
}

/// Tells what rules admit and refuse a second, again and again.
pub(crate) async fn watch(args: &Args) -> Result<bool, Failure> {
    let mut before: Vec<Option<Value>> = vec![None; args.admins.len()];
    let mut round = 0;
    loop {
        let (states, silent) = ask_all(args).await?;
        let told = sum(&states, &before);
        show::print(&if args.json {
            format!("{}\n", as_json(&told, &states, &silent))
        } else {
            format!("{}{}", show::anew(), as_text(&told, &states, &silent))
        })?;
        // Who was silent goes on from what it said last.
        for (place, state) in states.into_iter().enumerate().filter(|(_, state)| state.is_some()) {
            before[place] = state;
        }
        round += 1;
        if args.times.is_some_and(|times| round >= times) {
            return finish(&silent);
        }
        tokio::time::sleep(args.interval).await;
    }
}

/// What a rule came to in all processes: how often each thing was counted, and how much of that each second.
#[derive(Default)]
struct Rule {
    quota: String,
    counts: BTreeMap<String, u64>,
    /// In thousandths.
    rates: BTreeMap<String, u64>,
}

fn sum(states: &[Option<Value>], before: &[Option<Value>]) -> BTreeMap<String, Rule> {
    let mut sums: BTreeMap<String, Rule> = BTreeMap::new();
    for (state, before) in states.iter().zip(before) {
        let Some(state) = state else { continue };
        let began = before.as_ref().and_then(|before| before["counted_ms"].as_u64());
        // A process that has started anew counts from zero.
        let before = before.as_ref().filter(|_| began <= state["counted_ms"].as_u64());
        let ms = state["counted_ms"].as_u64().unwrap_or(0).saturating_sub(began.unwrap_or(0));
        for rule in state["rules"].as_array().into_iter().flatten() {
            let sum = sums.entry(text(&rule["name"])).or_default();
            sum.quota = text(&rule["quota"]);
            let known = before.and_then(|before| {
                before["rules"]
                    .as_array()?
                    .iter()
                    .find(|other| other["name"] == rule["name"])
                    .map(|rule| &rule["counts"])
            });
            for (name, count) in rule["counts"].as_object().into_iter().flatten() {
                let count = count.as_u64().unwrap_or(0);
                *sum.counts.entry(name.clone()).or_default() += count;
                if let Some(was) = known.and_then(|known| known[name].as_u64()) {
                    let more = count.saturating_sub(was);
                    *sum.rates.entry(name.clone()).or_default() += (more * 1_000_000).checked_div(ms).unwrap_or(0);
                }
            }
        }
    }
    sums
}

/// Stands for several counts in a column.
const COLUMNS: [(&str, &[&str]); 5] = [
    ("admitted/s", &["allowed", "shadow_allowed"]),
    ("refused/s", &["refused", "unavailable"]),
    ("shadow/s", &["shadow_refused"]),
    ("near/s", &["near_limit"]),
    ("degraded/s", &["degraded"]),
];

fn as_text(rules: &BTreeMap<String, Rule>, states: &[Option<Value>], silent: &[String]) -> String {
    let rows: Vec<_> = rules
        .iter()
        .map(|(name, rule)| {
            let rate = |names: &[&str]| {
                let milli: u64 = names.iter().filter_map(|name| rule.rates.get(*name)).sum();
                format!("{}.{}", milli / 1_000, milli % 1_000 / 100)
            };
            let count = |name| rule.counts.get(name).copied().unwrap_or(0).to_string();
            let rates = COLUMNS.iter().map(|(_, names)| rate(names));
            [name.clone(), rule.quota.clone()]
                .into_iter()
                .chain(rates)
                .chain([count("allowed"), count("refused")])
                .collect()
        })
        .collect();
    let head: Vec<_> = ["rule", "quota"]
        .into_iter()
        .chain(COLUMNS.iter().map(|(title, _)| *title))
        .chain(["admitted", "refused"])
        .collect();
    let mut told = format!("{} processes\n\n{}", states.iter().flatten().count(), show::table(&head, &rows));
    let store = |name: &str| states.iter().flatten().filter_map(|state| state["store"][name].as_u64()).sum::<u64>();
    let lost = states.iter().flatten().filter(|state| state["store"]["connected"] == false).count();
    told += &format!(
        "\nstore: {} calls, {} failed, {} breakers open, {lost} processes not connected, {} refused from memory\n",
        store("calls"),
        store("failures"),
        store("breakers_open"),
        store("deny_cache_hits"),
    );
    silent.iter().for_each(|silent| told += &format!("silent: {silent}\n"));
    told
}

fn as_json(rules: &BTreeMap<String, Rule>, states: &[Option<Value>], silent: &[String]) -> Value {
    let rules: Vec<Value> = rules
        .iter()
        .map(|(name, rule)| {
            json!({ "name": name, "quota": rule.quota, "counts": rule.counts, "milli_per_second": rule.rates })
        })
        .collect();
    json!({ "processes": states.iter().flatten().count(), "silent": silent, "rules": rules })
}

/// Asks all routers at once. Returns what each said, and who did not.
async fn ask_all(args: &Args) -> Result<(Vec<Option<Value>>, Vec<String>), Failure> {
    if args.admins.is_empty() {
        return Err(Failure::Wrong(
            "--admin URL says where a router is, such as http://127.0.0.1:3000/admin".to_owned(),
        ));
    }
    let token = match &args.token_file {
        Some(file) => fs::read_to_string(file).map_err(|error| Failure::Wrong(format!("{file}: {error}")))?,
        None => env::var("TOLLGATE_ADMIN_TOKEN")
            .map_err(|_| Failure::Wrong("the token is taken from --token-file or TOLLGATE_ADMIN_TOKEN".to_owned()))?,
    };
    let asked: Vec<_> = args.admins.iter().map(|url| tokio::spawn(ask(url.clone(), token.trim().to_owned()))).collect();
    let (mut states, mut silent) = (Vec::new(), Vec::new());
    for (url, asked) in args.admins.iter().zip(asked) {
        let answer = asked.await.unwrap_or_else(|error| Err(error.to_string()));
        states.push(answer.map_err(|error| silent.push(format!("{url}: {error}"))).ok());
    }
    Ok((states, silent))
}

async fn ask(url: String, token: String) -> Result<Value, String> {
    let request = Request::get(format!("{}/api/state", url.trim_end_matches('/')))
        .header("authorization", format!("Bearer {token}"))
        .body(Full::<Bytes>::default())
        .map_err(|error| error.to_string())?;
    if request.uri().scheme_str() != Some("http") {
        return Err("write http://...: put what speaks TLS in front of this tool".to_owned());
    }
    let answer = async {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let response = client.request(request).await.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            cause.unwrap_or_else(|| error.to_string())
        })?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status.as_u16() {
            200 if body["rules"].is_array() => Ok(body),
            200 => Err("this is no admin router".to_owned()),
            _ => Err(format!("{status}: {}", body["error"].as_str().unwrap_or("this is no admin router"))),
        }
    };
    tokio::time::timeout(LONGEST, answer).await.unwrap_or_else(|_| Err("no answer in five seconds".to_owned()))
}

fn finish(silent: &[String]) -> Result<bool, Failure> {
    if silent.is_empty() { Ok(true) } else { Err(Failure::Silent(silent.join("; "))) }
}

fn text(value: &Value) -> String {
    // What is shown on a terminal must not steer it.
    value.as_str().unwrap_or_default().chars().filter(|c| !c.is_control()).collect()
}

/// How long a person waits for one process among many.
const LONGEST: Duration = Duration::from_secs(5);
