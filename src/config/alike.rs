//! A file makes what the builders make that its keys stand for.

use std::{num::NonZeroU32, time::Duration};

use http::Method;

use super::{Config, Format, source::Faults};
use crate::{
    layer::{Exception, Rule, client_ip, cookie, global, header, method},
    limit::{Escalation, OnError, Quota},
    memory::WhenFull,
};

fn rule() -> Rule {
    Rule::new("r", Quota::per_minute(7))
}

#[test]
fn each_key_of_a_rule_does_what_its_builder_does() {
    let minute = Duration::from_secs(60);
    let of = |key| Exception::Bucket { quota: Quota::per_minute(key), burst: 9 };
    for (text, built) in [
        ("", rule()),
        ("key = 'global'", rule().by(global())),
        ("key = 'header:x-api-key'\nmissing = 'skip'", rule().by(header("x-api-key").or_skip())),
        ("key = 'header:x-tenant'\nsecret = true", rule().by(header("x-tenant").secret())),
        ("key = 'header:x-api-key'\nsecret = false", rule().by(header("x-api-key").plain())),
        ("key = 'cookie:id'\nmissing = 'reject'", rule().by(cookie("id").or_reject())),
        ("ipv4_prefix = 24\nipv6_prefix = 48", rule().by(client_ip().ipv4_prefix(24).ipv6_prefix(48))),
        ("algorithm = 'fixed-window'\naligned = true", rule().fixed_window().aligned()),
        ("algorithm = 'sliding-window'", rule().sliding_window()),
        ("algorithm = 'sliding-counter'", rule().sliding_counter()),
        ("algorithm = 'token-bucket'\nburst = 9", rule().token_bucket().burst(9)),
        ("allotted = 10", rule().allotted(10)),
        ("cost = 3", rule().cost(3)),
        ("charge = 'status:401'", rule().charge("status:401")),
        ("settled = true", rule().settled()),
        ("reduced_capacity = true", rule().reduced_capacity()),
        (
            "escalate = { after = 3, within = '1m', block = '2m', up_to = '5m' }",
            rule().escalate(Escalation::new(3, minute, 2 * minute).up_to(5 * minute)),
        ),
        (
            "escalate = { after = 3, within = '1m', block = '2m' }",
            rule().escalate(Escalation::new(3, minute, 2 * minute)),
        ),
        ("match = { path = '/a', method = ['GET', 'PUT'] }", rule().path("/a").method(Method::GET).method(Method::PUT)),
        ("match.not.path = '/a'", rule().unless(|_| true)),
        ("mode = 'shadow'", rule().shadow()),
        ("mode = '25%'", rule().enforce_percent(25)),
        ("on_error = 'deny'", rule().on_error(OnError::Deny)),
        (
            "override = [{ key = '10.0.0.1', quota = 'blocked' }, { key = '10.0.0.2', quota = '8/min', burst = 9 }]",
            rule().except(["10.0.0.1"], Exception::Blocked).except(["10.0.0.2"], of(8)),
        ),
    ] {
        let text = format!("[[rule]]\nname = 'r'\nquota = '7/min'\n{text}");
        let config = Config::parse(text.as_str(), Format::Toml).expect(&text);
        let read = config.rules(&mut Faults::default());
        assert_eq!(format!("{read:?}"), format!("{:?}", [built]), "{text}");
    }
}

#[test]
fn the_store_says_what_rules_decide_that_do_not_say_it() {
    let text = "[store]\non_error = 'deny'\n[[rule]]\nname = 'r'\nquota = '7/min'\n[[rule]]\nname = 'own'\nquota = '7/min'\n\
                on_error = 'allow'";
    let read = Config::parse(text, Format::Toml).expect("right").rules(&mut Faults::default());
    let built = [rule().on_error(OnError::Deny), Rule::new("own", Quota::per_minute(7)).on_error(OnError::Allow)];
    assert_eq!(format!("{read:?}"), format!("{built:?}"));
}

#[test]
fn each_key_of_a_composite_is_there_in_order() {
    let text = "[[rule]]\nname = 'r'\nquota = '7/min'\nkey = ['method', 'header:x-tenant']";
    let read = Config::parse(text, Format::Toml).expect("right").rules(&mut Faults::default());
    let (method, header) = (format!("{:?}", method()), format!("{:?}", header("x-tenant")));
    let told = format!("{read:?}");
    let places = (told.find(&method), told.find(&header));
    assert!(places.0.is_some() && places.0 < places.1, "{told}");
}

#[test]
fn what_is_said_beside_the_rules_is_taken_over() {
    let text = "rules = []\nlimit_preflights = true\nexempt_grpc_probes = true\nexpose_decision = true\n\
                [headers]\npartition_keys = true\nskip_cacheable = true\n\
                [store]\ndeadline = '7s'\non_error = 'allow'\nreplicas = 3\ndeny_max_age = '9s'\nmax_keys = 5\n\
                when_full = 'refuse'\nkey_secret = 'pepper'";
    let config = Config::parse(text, Format::Toml).expect("right");
    let (store, options) = (&config.draft.store, &config.draft.options);
    assert!(options.preflights && options.exempt_grpc_probes && options.expose && options.partitions);
    assert!(options.skip_cacheable);
    assert_eq!((store.deadline, store.deny_max_age), (Some(Duration::from_secs(7)), Some(Duration::from_secs(9))));
    assert_eq!((store.on_error, Some(store.replicas)), (OnError::Allow, NonZeroU32::new(3)));
    assert_eq!((store.max_keys, store.when_full), (Some(5), WhenFull::Refuse));
    let limiter = config.limiter().expect("made");
    assert!(limiter.deadline_of_calls() == Duration::from_secs(7) && limiter.secrets().is_keyed());
    let told = format!("{limiter:?}");
    assert!(told.contains("max_keys: 5,") && told.contains("when_full: Refuse"), "{told}");
}
