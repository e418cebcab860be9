use std::{
    fs,
    process::{Command, Stdio},
};

/// Where a server runs, and where whatever asks it.
pub const SERVER: &str = "0";
pub const CLIENT: &str = "1";

/// Returns a command that runs a program on one core, or anywhere if there is no `taskset`.
pub fn on(core: &str, program: &str) -> Command {
    if !can_pin() {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", core, program]);
    command
}

/// Does something with this thread on one core, and lets it go where it could go before.
pub fn pinned<T>(core: &str, work: impl FnOnce() -> T) -> T {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let before = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
    let Some(before) = before.filter(|_| can_pin()) else { return work() };
    let pin = |cores: &str| {
        let id = std::process::id().to_string();
        let _ = Command::new("taskset").args(["-cp", cores, &id]).stdout(Stdio::null()).status();
    };
    pin(core);
    let result = work();
    pin(before);
    result
}

fn can_pin() -> bool {
    Command::new("taskset").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
