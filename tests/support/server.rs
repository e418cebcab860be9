//! Real Redis servers: started on free ports, ended by handle.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A `redis-server` of our own; it ends when this is dropped.
pub struct Server {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    args: Vec<String>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments than the usual ones.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the server");
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        // Between looking for a port and listening on it somebody else may take it.
        for _ in 0..20 {
            let port = Self::free_port();
            let mut child = spawn(&program(), port, &dir, &args, &[]);
            if answers(port, &mut child, 500) {
                return Self { child, port, dir, args };
            }
            end(&mut child);
        }
        panic!(
            "redis-server did not start; its log: {}",
            fs::read_to_string(dir.path().join("log")).unwrap_or_default()
        );
    }

    /// Starts a server whose clock is read through libfaketime; `None` if that cannot be had.
    ///
    /// The C library comes before an allocator of the server's own, which may ask for the time before there is one.
    /// `TOLLGATE_CLOCK_SERVER` may name another server.
    pub fn start_with_fake_clock() -> Option<(Self, FakeClock)> {
        let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"]
            .iter()
            .flat_map(|dir| [format!("{dir}/faketime/libfaketimeMT.so.1"), format!("{dir}/libfaketimeMT.so.1")])
            .find(|path| PathBuf::from(path).exists())?;
        let dir = tempfile::tempdir().expect("a folder for the server");
        let path = dir.path().join("clock");
        write_shift(&path, 0);
        let file = path.display().to_string();
        let libraries = format!("{library} libc.so.6");
        let vars = [
            ("LD_PRELOAD", libraries.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", file.as_str()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        let program = env::var("TOLLGATE_CLOCK_SERVER").unwrap_or_else(|_| program());
        let port = Self::free_port();
        let mut child = spawn(&program, port, &dir, &[], &vars);
        // One that does not suit hangs.
        if !answers(port, &mut child, 100) {
            end(&mut child);
            return None;
        }
        Some((Self { child, port, dir, args: Vec::new() }, FakeClock { file: path, port }))
    }

    /// Returns a free port, so low that a node of a cluster has another one for itself 10,000 further up.
    pub fn free_port() -> u16 {
        loop {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("its address").port();
            if port <= u16::MAX - 10_000 {
                return port;
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns a plain connection, for looking behind the scenes.
    pub fn admin(&self) -> redis::Connection {
        self.admin_as("")
    }

    pub fn admin_as(&self, user_info: &str) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{user_info}127.0.0.1:{}", self.port)).expect("an address");
        for _ in 0..100 {
            match client.get_connection() {
                // One that is being made a replica cuts whoever connects.
                Err(error) if error.is_io_error() => thread::sleep(Duration::from_millis(20)),
                connection => return connection.expect("a connection to our own server"),
            }
        }
        panic!("no connection to our own server");
    }

    /// Ends the server at once, without a chance to save.
    pub fn kill(&mut self) {
        end(&mut self.child);
    }

    /// Starts it again, on the same port and with nothing kept.
    pub fn restart(&mut self) {
        end(&mut self.child);
        self.child = spawn(&program(), self.port, &self.dir, &self.args, &[]);
        assert!(answers(self.port, &mut self.child, 500), "redis-server does not start again");
    }

    /// Returns the process, for signals.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Shifts the clock of a server against the real one.
pub struct FakeClock {
    file: PathBuf,
    port: u16,
}

impl FakeClock {
    /// Sets the difference to the real time, in hours, and waits until the server has seen it.
    #[allow(clippy::disallowed_methods)]
    pub fn shift(&self, hours: i64) {
        write_shift(&self.file, hours);
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("an address");
        let mut admin = client.get_connection().expect("a connection to our own server");
        for _ in 0..1_000 {
            let (seconds, _): (i64, i64) = redis::cmd("TIME").query(&mut admin).expect("TIME");
            let real = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
            if (seconds - real.cast_signed() - hours * 3_600).abs() < 60 {
                return;
            }
            // The library tells nobody when it has read its file.
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the server's clock does not follow");
    }
}

fn write_shift(file: &Path, hours: i64) {
    let new = file.with_extension("new");
    fs::write(&new, format!("{hours:+}h")).expect("the clock's file");
    fs::rename(&new, file).expect("the clock's file");
}

pub(super) fn program() -> String {
    env::var("TOLLGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

fn spawn(program: &str, port: u16, dir: &tempfile::TempDir, args: &[String], vars: &[(&str, &str)]) -> Child {
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--logfile")
        .arg(dir.path().join("log"))
        .arg("--dir")
        .arg(dir.path())
        .args(args)
        .envs(vars.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "cannot start `{program}`: {error}\n\
                 These tests need a Redis server: `apt-get install redis-server`, `brew install redis`,\n\
                 or set TOLLGATE_REDIS_SERVER to the path of a redis-server or valkey-server."
            )
        })
}

/// Waits until the server accepts connections; returns false if it has ended instead.
fn answers(port: u16, child: &mut Child, tries: u32) -> bool {
    for _ in 0..tries {
        if !matches!(child.try_wait(), Ok(None)) {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        // The server tells nobody when it is ready.
        thread::sleep(Duration::from_millis(10));
    }
    false
}

pub(super) fn end(child: &mut Child) {
    // Both fail only if it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}
