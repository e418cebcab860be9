//! What the manual says holds: its commands do what is printed, and its links lead somewhere.

#[path = "support/mod.rs"]
mod support;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::server::Server;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A step of a page.
enum Step {
    /// A file is written: its path and text.
    Write(String, String),
    /// A command is typed, and prints this; what is left out may be anything.
    Run(String, String),
}

/// Reads what a page has its reader do: a block after a line that is a path is that file, one of a console is typed.
fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut before) = (Vec::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let path = before.strip_suffix("`:").and_then(|before| before.rsplit('`').next());
            match (kind, path) {
                ("console", _) => {
                    for line in block {
                        match (line.strip_prefix("$ "), steps.last_mut()) {
                            (Some(command), _) => steps.push(Step::Run(command.to_owned(), String::new())),
                            (None, Some(Step::Run(_, printed))) => printed.push_str(&format!("{line}\n")),
                            (None, _) => panic!("{line} is printed by no command"),
                        }
                    }
                }
                (_, Some(path)) => steps.push(Step::Write(path.to_owned(), block.join("\n"))),
                _ => panic!("the block after {before:?} is neither typed nor a file"),
            }
        } else if !line.is_empty() {
            before = line;
        }
    }
    steps
}

#[test]
fn a_newcomer_gets_what_the_first_page_prints() {
    let server = Server::start();
    let (one, two) = (Server::free_port().to_string(), Server::free_port().to_string());
    let here = tempfile::tempdir().expect("a folder");
    let mine = |text: &str| {
        let ports = [("6379", server.port().to_string()), ("3000", one.clone()), ("3001", two.clone())];
        ports.iter().fold(text.to_owned(), |text, (theirs, mine)| text.replace(theirs, mine))
    };
    let mut script = format!("set -eu\ncd '{}'\nservers=()\n", here.path().display());
    script.push_str("stop() { kill \"${servers[@]}\" 2>>log || true; wait; servers=(); }\ntrap stop EXIT\n");
    let mut expected = Vec::new();
    for step in steps(&read("docs/start.md")) {
        match step {
            Step::Write(path, text) => {
                if path == "src/main.rs" {
                    script.push_str("stop\n");
                }
                script.push_str(&format!("cat >{path} <<'END'\n{}\nEND\n", mine(&text)));
            }
            // It is there already.
            Step::Run(command, _) if command.starts_with("redis-server") => {}
            Step::Run(command, _) if command.starts_with("cargo run") => {
                let port = if command.ends_with("3001") { &two } else { &one };
                // It stands in the place of cargo, once it is built.
                script.push_str(&format!("{} >>log 2>&1 & servers+=($!)\n", mine(&command)));
                script.push_str(&format!(
                    "until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>>log; do kill -0 $!; sleep 0.1; done\n"
                ));
            }
            Step::Run(command, printed) => {
                // Of this repository, not of the registry; with all that later steps add, so that it is built once.
                let ours = format!("cargo add --path '{}' --features redis,config,admin", root().display());
                let command = command.replace("cargo add tollgate", &ours);
                script.push_str(&format!("echo; echo '@@'\n{}\n", mine(&command)));
                if command.starts_with("cargo new") {
                    script.push_str(&format!("cp '{}' hello/\n", root().join("Cargo.lock").display()));
                }
                expected.push((command, mine(&printed)));
            }
        }
    }
    let target = target();
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_NET_OFFLINE", "true")
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let log = fs::read_to_string(here.path().join("hello/log")).unwrap_or_default();
    assert!(output.status.success(), "{script}\n{out}\n{err}\n{log}");
    for ((command, printed), out) in expected.iter().zip(out.split("\n@@\n").skip(1)) {
        if !printed.is_empty() {
            assert_eq!(out.trim(), printed.trim(), "{command}");
        }
    }
}

/// Returns where this test was built, so that what it depends on need not be built again.
fn target() -> PathBuf {
    let program = env::current_exe().expect("this program");
    program.ancestors().nth(3).expect("target/debug/deps").to_owned()
}

/// Returns what a page calls by `[name]` or `](path)`.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    for part in page.split("](").skip(1) {
        links.push(part.split([')', '#']).next().expect("a first part").to_owned());
    }
    for line in page.lines().filter(|line| line.starts_with('[')) {
        links.extend(line.split_once("]: ").map(|(_, path)| path.to_owned()));
    }
    links.retain(|link| !link.is_empty() && !link.contains("://"));
    links
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_found() {
    let docs = fs::read_dir(root().join("docs")).expect("docs");
    let mut pages: Vec<String> =
        docs.map(|file| file.expect("a file").file_name().into_string().expect("text")).collect();
    pages.retain(|name| name.ends_with(".md") && name != "README.md");
    let (index, manual, machines) = (read("docs/README.md"), read("src/guide.rs"), read("llms.txt"));
    for page in &pages {
        let name = page.trim_end_matches(".md");
        assert!(index.contains(&format!("| [{page}] |")), "docs/README.md lacks {page}");
        // Those are the pages of modules.
        assert!(
            ["metrics", "admin"].contains(&name) || manual.contains(&format!("    {name}\n")),
            "src/guide.rs lacks {name}"
        );
        assert!(machines.contains(&format!("(docs/{page})")), "llms.txt lacks {page}");
    }
    let all = pages.iter().map(|page| format!("docs/{page}"));
    for file in all
        .chain(["README.md", "docs/README.md", "llms.txt", "examples/README.md", "ARCHITECTURE.md"].map(str::to_owned))
    {
        let text = read(&file);
        let folder = root().join(&file).parent().expect("a folder").to_owned();
        for link in links(&text) {
            assert!(folder.join(&link).exists(), "{file}: {link} is not there");
        }
        // What is called by name is defined at the end, for readers of the repository.
        for name in text.split('[').skip(1).filter_map(|part| part.split_once(']')).map(|(name, _)| name) {
            if name.ends_with(".md") && !name.contains('/') {
                assert!(text.contains(&format!("\n[{name}]: ")), "{file}: [{name}] leads nowhere");
            }
        }
    }
}

#[test]
fn the_readme_is_short_and_says_of_rights_what_the_manual_says() {
    let readme = read("README.md");
    assert!(readme.lines().count() < 300);
    let line = readme.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("the line of rights");
    assert!(read("docs/redis.md").lines().any(|other| other == line));
}
