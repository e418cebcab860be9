use std::sync::OnceLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use sha1_smol::Sha1;

use super::{connect::Handle, limit::Call};

/// A script of ours, known to servers by its SHA-1.
pub(super) struct Script {
    text: &'static str,
    sha: OnceLock<String>,
}

pub(super) static DECIDE: Script = Script::new(concat!(
    include_str!("lua/common.lua"),
    include_str!("lua/blocking.lua"),
    include_str!("lua/decide.lua")
));
pub(super) static SETTLE: Script = Script::new(concat!(include_str!("lua/common.lua"), include_str!("lua/settle.lua")));
pub(super) static BLOCK: Script = Script::new(concat!(include_str!("lua/blocking.lua"), include_str!("lua/block.lua")));
#[cfg(feature = "cluster")]
pub(super) static STRIKE: Script =
    Script::new(concat!(include_str!("lua/blocking.lua"), include_str!("lua/strike.lua")));
#[cfg(feature = "cluster")]
pub(super) static FLAG: Script = Script::new(include_str!("lua/flag.lua"));
pub(super) static ACQUIRE: Script = Script::new(include_str!("lua/acquire.lua"));
pub(super) static ACQUIRE_IN_TURN: Script = Script::new(include_str!("lua/acquire_in_turn.lua"));
pub(super) static ACQUIRE_PERMIT: Script = Script::new(include_str!("lua/acquire_permit.lua"));
pub(super) static EXTEND: Script = Script::new(include_str!("lua/extend.lua"));
pub(super) static EXTEND_PERMIT: Script = Script::new(include_str!("lua/extend_permit.lua"));
pub(super) static HAND_OVER: Script = Script::new(include_str!("lua/hand_over.lua"));
pub(super) static RELEASE: Script = Script::new(include_str!("lua/release.lua"));
pub(super) static RELEASE_IN_TURN: Script = Script::new(include_str!("lua/release_in_turn.lua"));
pub(super) static RELEASE_PERMIT: Script = Script::new(include_str!("lua/release_permit.lua"));
pub(super) static HOLDERS: Script = Script::new(include_str!("lua/holders.lua"));
pub(super) static FORCE: Script = Script::new(include_str!("lua/force.lua"));
pub(super) static BEGIN: Script = Script::new(include_str!("lua/begin.lua"));
pub(super) static EXTEND_ATTEMPT: Script = Script::new(include_str!("lua/extend_attempt.lua"));
pub(super) static COMPLETE: Script = Script::new(include_str!("lua/complete.lua"));
pub(super) static ABANDON: Script = Script::new(include_str!("lua/abandon.lua"));
pub(super) static TAKE: Script = Script::new(include_str!("lua/take.lua"));
pub(super) static RAISE: Script = Script::new(include_str!("lua/raise.lua"));
pub(super) static WRITE_FENCED: Script = Script::new(include_str!("lua/write_fenced.lua"));
pub(super) static PUSH: Script = Script::new(include_str!("lua/push.lua"));
pub(super) static CLAIM: Script = Script::new(include_str!("lua/claim.lua"));
pub(super) static EXTEND_CLAIM: Script = Script::new(include_str!("lua/extend_claim.lua"));
pub(super) static ACK: Script = Script::new(include_str!("lua/ack.lua"));
pub(super) static NACK: Script = Script::new(include_str!("lua/nack.lua"));
pub(super) static BURY: Script = Script::new(include_str!("lua/bury.lua"));
pub(super) static LIST_DEAD: Script = Script::new(include_str!("lua/list_dead.lua"));
pub(super) static REQUEUE: Script = Script::new(include_str!("lua/requeue.lua"));

impl Script {
    const fn new(text: &'static str) -> Self {
        Self { text, sha: OnceLock::new() }
    }

    /// Calls the script by its SHA, and by its text if the server does not know it (any more).
    ///
    /// `NOSCRIPT` proves that nothing ran, so asking again charges nothing twice.
    pub(super) async fn call(&self, connection: &mut Handle, call: &Call) -> Result<Value, RedisError> {
        match self.command(call).query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.whole(call).query_async(connection).await
            }
            answer => answer,
        }
    }

    /// Calls the script by its text.
    pub(super) fn whole(&self, call: &Call) -> Cmd {
        command("EVAL", self.text, call)
    }

    /// Calls the script by its SHA.
    pub(super) fn command(&self, call: &Call) -> Cmd {
        let sha = self.sha.get_or_init(|| Sha1::from(self.text).digest().to_string());
        command("EVALSHA", sha, call)
    }
}

fn command(name: &str, script: &str, call: &Call) -> Cmd {
    let keys = call.keys();
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len());
    keys.for_each(|key| {
        command.arg(key);
    });
    call.arguments().iter().for_each(|argument| {
        command.arg(argument);
    });
    command
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SCRIPTS: &[(&str, &Script)] = &[
        ("decide.lua", &DECIDE),
        ("settle.lua", &SETTLE),
        ("block.lua", &BLOCK),
        #[cfg(feature = "cluster")]
        ("strike.lua", &STRIKE),
        #[cfg(feature = "cluster")]
        ("flag.lua", &FLAG),
        ("acquire.lua", &ACQUIRE),
        ("acquire_in_turn.lua", &ACQUIRE_IN_TURN),
        ("acquire_permit.lua", &ACQUIRE_PERMIT),
        ("extend.lua", &EXTEND),
        ("extend_permit.lua", &EXTEND_PERMIT),
        ("hand_over.lua", &HAND_OVER),
        ("release.lua", &RELEASE),
        ("release_in_turn.lua", &RELEASE_IN_TURN),
        ("release_permit.lua", &RELEASE_PERMIT),
        ("holders.lua", &HOLDERS),
        ("force.lua", &FORCE),
        ("begin.lua", &BEGIN),
        ("extend_attempt.lua", &EXTEND_ATTEMPT),
        ("complete.lua", &COMPLETE),
        ("abandon.lua", &ABANDON),
        ("take.lua", &TAKE),
        ("raise.lua", &RAISE),
        ("write_fenced.lua", &WRITE_FENCED),
        ("push.lua", &PUSH),
        ("claim.lua", &CLAIM),
        ("extend_claim.lua", &EXTEND_CLAIM),
        ("ack.lua", &ACK),
        ("nack.lua", &NACK),
        ("bury.lua", &BURY),
        ("list_dead.lua", &LIST_DEAD),
        ("requeue.lua", &REQUEUE),
    ];

    /// Returns the numbers of all `NAME[n]` in a text; `NAME[i]` and `NAME[k]` stand for any number.
    fn indices(name: &str, text: &str) -> BTreeSet<String> {
        let index = |at: usize| text[at + name.len() + 1..].split(']').next().unwrap_or_default().to_owned();
        let any = |index: String| if index.parse::<u32>().is_ok() { index } else { "any".to_owned() };
        text.match_indices(&format!("{name}[")).map(|(at, _)| any(index(at))).collect()
    }

    #[test]
    fn each_header_tells_what_its_script_takes_and_returns() {
        for (name, script) in SCRIPTS {
            let start = script.text.find(&format!("-- {name}: ")).expect(name);
            let (common, own) = script.text.split_at(start);
            let lines = own.lines().take_while(|line| line.starts_with("--")).map(|line| line.len() + 1);
            let (header, body) = own.split_at(lines.sum());
            let parts = [include_str!("lua/common.lua"), include_str!("lua/blocking.lua")];
            let rest = parts.iter().fold(common, |rest, part| rest.strip_prefix(part).unwrap_or(rest));
            assert!(rest.is_empty(), "{name}");
            let body = &format!("{common}{body}");
            assert!(header.contains("-- returns "), "{name}");
            for argument in ["KEYS", "ARGV"] {
                assert_eq!(indices(argument, header), indices(argument, body), "{name}: {argument}");
            }
        }
    }

    #[test]
    fn no_script_looks_for_keys() {
        for (_, script) in SCRIPTS {
            for command in ["'KEYS'", "'SCAN'", "'RANDOMKEY'"] {
                assert!(!script.text.contains(command), "{command}");
            }
        }
    }
}
