//! The example servers, as `cargo test` has built them beside the tests.

use std::{
    env,
    ffi::OsStr,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

/// An example server of our own; it ends when this is dropped.
pub struct Example {
    child: Child,
    pub address: SocketAddr,
}

impl Example {
    /// Starts an example on a free port; `None` if it was not built, as by `cargo test --test NAME` alone.
    pub fn start<A: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = A>) -> Option<Self> {
        let program = env::current_exe().ok()?.parent()?.parent()?.join("examples").join(name);
        if !program.exists() {
            eprintln!("skipped: the example `{name}` is not built");
            return None;
        }
        let mut child = Command::new(program)
            .args(["--listen", "127.0.0.1:0"])
            .args(args)
            .env("TOLLGATE_KEY_SECRET", "pepper")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the example starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").expect("where it listens");
        Some(Self { child, address: address.parse().expect("an address") })
    }

    /// Ends it at once, in the middle of whatever it does.
    pub fn kill(&mut self) {
        super::server::end(&mut self.child);
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.kill();
    }
}
