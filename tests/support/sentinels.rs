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
    sentinels: Vec<Child>,
    ports: Vec<u16>,
    _dir: tempfile::TempDir,
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
        let dir = tempfile::tempdir().expect("a folder");
        let lines = if password.is_empty() { String::new() } else { format!("requirepass {password}") };
        let ports: Vec<u16> = (0..3).map(|_| Server::free_port()).collect();
        let sentinels = ports.iter().map(|own| {
            let file = dir.path().join(format!("{own}.conf"));
            let text = format!(
                "port {own}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n{lines}\n",
                dir.path().display()
            );
            fs::write(&file, text).expect("a file");
            let mut command = Command::new(program());
            command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("a sentinel")
        });
        let sentinels = sentinels.collect();
        let all = Self { master, replica, sentinels, ports, _dir: dir };
        all.wait(password, "see each other and the replica", |info| {
            info.contains("slaves=1") && info.contains("sentinels=3") && info.contains("status=ok")
        });
        all
    }

    /// Returns the address, with a user's name and password or nothing before the hosts.
    pub fn url(&self, user_info: &str) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{user_info}{}/main", hosts.join(","))
    }

    /// Ends the first sentinel.
    pub fn kill_a_sentinel(&mut self) {
        end(&mut self.sentinels[0]);
    }

    /// Waits until all sentinels tell something of the master.
    #[allow(clippy::disallowed_methods)]
    fn wait(&self, password: &str, what: &str, tells: impl Fn(&str) -> bool) {
        let told = |port: &u16| -> bool {
            if TcpStream::connect(("127.0.0.1", *port)).is_err() {
                return false;
            }
            let client = redis::Client::open(format!("redis://:{password}@127.0.0.1:{port}")).expect("an address");
            let info =
                client.get_connection().and_then(|mut admin| redis::cmd("INFO").arg("sentinel").query(&mut admin));
            info.is_ok_and(|info: String| tells(&info))
        };
        for _ in 0..2_000 {
            if self.ports.iter().all(told) {
                return;
            }
            // Sentinels tell nobody when they have met.
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the sentinels do not {what}");
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.sentinels.iter_mut().for_each(end);
    }
}
