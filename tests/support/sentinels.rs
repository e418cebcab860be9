//! A master, a replica and three sentinels.

use std::{
    fs,
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::server::{Server, end, program};

/// Servers under the watch of sentinels; all end when this is dropped.
pub struct Sentinels {
    pub master: Server,
    pub replica: Server,
    sentinels: Vec<Sentinel>,
}

/// A sentinel; it ends when this is dropped.
pub struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    /// Starts one that watches a master as `main`, with more lines in its file.
    pub fn start(master: u16, quorum: usize, lines: &str) -> Self {
        let (port, dir) = (Server::free_port(), tempfile::tempdir().expect("a folder"));
        let file = dir.path().join("sentinel.conf");
        // With TLS, the one port is that.
        let kind = if lines.contains("tls-") { "port 0\ntls-port" } else { "port" };
        let text = format!(
            "{kind} {port}\nbind 127.0.0.1\ndir {}\n{lines}\nsentinel monitor main 127.0.0.1 {master} {quorum}\n\
             sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
            dir.path().display()
        );
        fs::write(&file, text).expect("a file");
        let mut command = Command::new(program());
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().expect("a sentinel"), port, _dir: dir }
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

impl Sentinels {
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts all; the sentinels ask for a password unless that is empty.
    pub fn start_with(password: &str) -> Self {
        let master = Server::start();
        let port = master.port().to_string();
        let replica = Server::start_with(&["--replicaof", "127.0.0.1", &port]);
        let lines = if password.is_empty() { String::new() } else { format!("requirepass {password}") };
        let sentinels = (0..3).map(|_| Sentinel::start(master.port(), 2, &lines)).collect();
        let all = Self { master, replica, sentinels };
        all.wait(password, "see each other and the replica", |info| {
            info.contains("slaves=1") && info.contains("sentinels=3") && info.contains("status=ok")
        });
        all
    }

    /// Returns the address, with a user's name and password or nothing before the hosts.
    pub fn url(&self, user_info: &str) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{user_info}{}/main", hosts.join(","))
    }

    /// Ends the first sentinel.
    pub fn kill_a_sentinel(&mut self) {
        end(&mut self.sentinels[0].child);
    }

    /// Has one sentinel replace the master by the replica, as an operator does.
    pub fn fail_over(&self) {
        let _: () =
            redis::cmd("SENTINEL").arg("FAILOVER").arg("main").query(&mut self.sentinel()).expect("SENTINEL FAILOVER");
    }

    /// Returns a connection to the first sentinel.
    pub fn sentinel(&self) -> redis::Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.sentinels[0].port)).expect("an address");
        client.get_connection().expect("a connection to our own sentinel")
    }

    /// Waits until all sentinels tell something of the master.
    #[allow(clippy::disallowed_methods)]
    fn wait(&self, password: &str, what: &str, tells: impl Fn(&str) -> bool) {
        let told = |sentinel: &Sentinel| -> bool {
            let port = sentinel.port;
            if TcpStream::connect(("127.0.0.1", port)).is_err() {
                return false;
            }
            let client = redis::Client::open(format!("redis://:{password}@127.0.0.1:{port}")).expect("an address");
            let info =
                client.get_connection().and_then(|mut admin| redis::cmd("INFO").arg("sentinel").query(&mut admin));
            info.is_ok_and(|info: String| tells(&info))
        };
        for _ in 0..2_000 {
            if self.sentinels.iter().all(told) {
                return;
            }
            // Sentinels tell nobody when they have met.
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the sentinels do not {what}");
    }
}
