//! What is asked for.

use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

pub(crate) const HELP: &str = "\
Looks at limits and changes them, for who is on call.

    tollgatectl [OPTIONS] COMMAND

Limits, on the store that a configuration names (--config, and --redis in the place of its store):
    peek RULE KEY             how the key stands under the rule; charges nothing
    explain KEY               the same under all rules: what is left, what happens next, and when
    reset RULE KEY            forgets what the key has used
    block RULE KEY TIME       refuses the key for so long (90s, 15m, 1h, 7d), whatever it has used
    unblock RULE KEY          lets it in again

Processes, by their admin routers (--admin, once for each; figures are summed):
    top                       the keys that are refused most
    watch                     what each rule admits and refuses a second, until it is stopped

Coordination, on Redis (--redis):
    holders NAME              who holds a lock, or with --permits N the permits of a semaphore
    dead QUEUE                the dead letters of a queue of jobs

Options:
    --config FILE             the rules; TOML, JSON or YAML
    --named NAME              a key that the file names and the service defines in code; once for each
    --redis URL               redis://..., rediss://..., redis+sentinel://..., redis+cluster://...
    --prefix TEXT             what keys in Redis begin with, with --redis; tollgate by default
    --admin URL               where an admin router is, http://127.0.0.1:3000/admin
    --token-file FILE         holds the routers' token; else it is taken from TOLLGATE_ADMIN_TOKEN
    --secret                  KEY is a secret, such as an API key: take its hash, by the file's key_secret
    --permits N               how many permits the semaphore has
    --most N                  how many keys or letters to show; 20 by default
    --interval TIME           how often watch looks; 2s by default
    --times N                 ends watch after so many rounds
    --json                    prints JSON, watch one line a round
    --help                    prints this

A KEY is written as logs and the operators' page show it: | stands between the parts of a composite.

Exit codes:
    0   done; peek and explain: the next request passes
    1   peek and explain: the next request is refused; holders: nobody holds; dead: there are some
    2   the command is wrong, or the configuration
    3   a store or an admin router did not answer, or did not let us in; top and watch print what the others said
";

#[derive(Debug, Default)]
pub(crate) struct Args {
    pub(crate) config: Option<String>,
    pub(crate) named: Vec<String>,
    pub(crate) redis: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) admins: Vec<String>,
    pub(crate) token_file: Option<String>,
    pub(crate) secret: bool,
    pub(crate) permits: Option<u32>,
    pub(crate) most: usize,
    pub(crate) interval: Duration,
    pub(crate) times: Option<u64>,
    pub(crate) json: bool,
    pub(crate) help: bool,
    pub(crate) command: Vec<String>,
}

impl Args {
    pub(crate) fn parse(mut parser: Parser) -> Result<Self, lexopt::Error> {
        let mut args = Self { most: 20, interval: Duration::from_secs(2), ..Self::default() };
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("config") => args.config = Some(parser.value()?.string()?),
                Arg::Long("named") => args.named.push(parser.value()?.string()?),
                Arg::Long("redis") => args.redis = Some(parser.value()?.string()?),
                Arg::Long("prefix") => args.prefix = Some(parser.value()?.string()?),
                Arg::Long("admin") => args.admins.push(parser.value()?.string()?),
                Arg::Long("token-file") => args.token_file = Some(parser.value()?.string()?),
                Arg::Long("secret") => args.secret = true,
                Arg::Long("permits") => args.permits = Some(parser.value()?.parse()?),
                Arg::Long("most") => args.most = parser.value()?.parse()?,
                Arg::Long("interval") => args.interval = time(&parser.value()?.string()?)?,
                Arg::Long("times") => args.times = Some(parser.value()?.parse()?),
                Arg::Long("json") => args.json = true,
                Arg::Short('h') | Arg::Long("help") => args.help = true,
                Arg::Value(word) => args.command.push(word.string()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }
}

/// Reads a time such as `90s`, `15m`, `1h` or `7d`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: write a whole number and ms, s, m, h or d, such as 15m");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    count.checked_mul(unit_ms).filter(|ms| *ms > 0).map(Duration::from_millis).ok_or_else(wrong)
}
