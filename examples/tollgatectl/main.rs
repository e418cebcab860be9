//! Looks at limits and changes them, for who is on call: on Redis, and in processes that have an admin router.
//!
//! ```text
//! cargo run --example tollgatectl -- --help
//! cargo run --example tollgatectl -- --config tollgate.toml explain 203.0.113.7
//! TOLLGATE_ADMIN_TOKEN=... cargo run --example tollgatectl -- --admin http://127.0.0.1:3000/admin watch
//! ```

mod admins;
mod args;
mod coordination;
mod limits;
mod show;

use std::process::ExitCode;

use crate::args::{Args, HELP};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::parse(lexopt::Parser::from_env()) {
        Ok(args) => args,
        Err(error) => return fail(&Failure::Wrong(error.to_string())),
    };
    if args.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => fail(&failure),
    }
}

/// Why there is no answer.
enum Failure {
    /// The command or the configuration is wrong.
    Wrong(String),
    /// Somebody does not answer.
    Silent(String),
}

impl From<tollgate::Error> for Failure {
    fn from(error: tollgate::Error) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        if error.is_invalid() { Self::Wrong(text) } else { Self::Silent(text) }
    }
}

/// Does what is asked; returns false if the answer is no.
async fn run(args: &Args) -> Result<bool, Failure> {
    let words: Vec<&str> = args.command.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["peek", rule, key] => limits::explain(args, Some(rule), key).await,
        ["explain", key] => limits::explain(args, None, key).await,
        ["reset", rule, key] => limits::change(args, limits::Change::Reset, rule, key).await,
        ["block", rule, key, long] => {
            let long = args::time(long).map_err(Failure::Wrong)?;
            limits::change(args, limits::Change::Block(long), rule, key).await
        }
        ["unblock", rule, key] => limits::change(args, limits::Change::Unblock, rule, key).await,
        ["top"] => admins::top(args).await,
        ["watch"] => admins::watch(args).await,
        ["holders", name] => coordination::holders(args, name).await,
        ["dead", queue] => coordination::dead(args, queue).await,
        [] => Err(Failure::Wrong("no command; --help has them".to_owned())),
        words => Err(Failure::Wrong(format!("`{}` is no command; --help has them", words.join(" ")))),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    let (text, code) = match failure {
        Failure::Wrong(text) => (text, 2),
        Failure::Silent(text) => (text, 3),
    };
    eprintln!("tollgatectl: {text}");
    ExitCode::from(code)
}
