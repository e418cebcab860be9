//! Tells all that is wrong with a configuration file, as `FILE:LINE:COLUMN: what`, and then exits with 1.
//!
//! ```text
//! cargo run --example check_config -- tollgate.toml
//! cargo run --example check_config -- tollgate.yaml --allow-key tenant    # a key that the service names
//! ```

use std::process::ExitCode;

use tollgate::Config;

fn main() -> ExitCode {
    let (file, keys) = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\nusage: check_config FILE [--allow-key NAME]...");
            return ExitCode::from(2);
        }
    };
    match Config::check(&file, keys) {
        Ok(()) => {
            println!("{file}: fine");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<(String, Vec<String>), lexopt::Error> {
    use lexopt::prelude::*;
    let (mut file, mut keys) = (None, Vec::new());
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("allow-key") => keys.push(parser.value()?.string()?),
            Value(path) if file.is_none() => file = Some(path.string()?),
            _ => return Err(arg.unexpected()),
        }
    }
    Ok((file.ok_or("which file?")?, keys))
}
