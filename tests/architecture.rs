//! Who may name whom: each module of the crate sees only those that it stands on.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A module, and the modules that its files may name.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("key", &[]),
    ("metrics", &[]),
    ("limit", &["error", "key"]),
    ("lease", &["error", "key", "metrics"]),
    ("memory", &["error", "key", "limit", "lease"]),
    ("redis", &["error", "key", "limit", "lease"]),
    ("shield", &["error", "key", "metrics", "limit", "memory"]),
    ("limiter", &["error", "key", "metrics", "limit", "shield", "memory"]),
    ("layer", &["error", "key", "metrics", "limiter", "limit", "lease", "memory"]),
    ("config", &["error", "key", "metrics", "layer", "limiter", "limit", "memory", "redis"]),
    ("admin", &["error", "key", "metrics", "limiter", "limit", "lease"]),
    ("guide", &["admin"]), // in its links
];

/// `layer` names `memory` for `per_client` alone.
const MEMORY_IN_LAYER: &str = "src/layer/rate_limit/layer.rs";

#[test]
fn modules_name_only_what_they_stand_on() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for path in sources() {
        let file = path.strip_prefix(root).expect("a file of ours").display().to_string();
        let module = file.strip_prefix("src/").expect("a source").split(['/', '.']).next().expect("a name").to_owned();
        if module == "lib" || TEST_MODULES.contains(&module.as_str()) {
            continue;
        }
        let (_, allowed) =
            MAY_NAME.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{file} is in no known module"));
        for named in modules_named(&fs::read_to_string(&path).expect("a source")) {
            let own = named == module;
            let memory = named == "memory" && module == "layer" && file != MEMORY_IN_LAYER;
            if !own && (memory || !allowed.contains(&named.as_str())) {
                wrong.push(format!("{file} names crate::{named}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Tests that look at several modules at once.
const TEST_MODULES: &[&str] = &["agreement"];

/// Returns all files of the crate's own code.
fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns what follows `crate::` in code, groups taken apart. Types that the root re-exports count by their name,
/// so that nobody reaches a module through the root.
fn modules_named(source: &str) -> BTreeSet<String> {
    let code: String =
        source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => named.extend(first_words(group)),
            None => named.extend(first_word(rest)),
        }
    }
    named
}

fn first_words(group: &str) -> Vec<String> {
    let (mut depth, mut words, mut start) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                words.extend(first_word(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                words.extend(first_word(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    words
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

#[test]
fn every_async_function_tells_what_becomes_of_it_when_it_is_dropped() {
    let mut silent = Vec::new();
    for path in sources() {
        let source = fs::read_to_string(&path).expect("a source");
        silent.extend(silent_functions(&source).into_iter().map(|name| format!("{}: {name}", path.display())));
    }
    assert!(silent.is_empty(), "without `# Cancel safety`: {silent:#?}");
}

/// Returns the public async functions whose docs do not have the section.
fn silent_functions(source: &str) -> Vec<&str> {
    let mut tells = false;
    let mut silent = Vec::new();
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("///") {
            tells |= line == "/// # Cancel safety";
            continue;
        }
        let returns_one = line.contains("-> impl Future") || line.contains("-> BoxFuture");
        if !tells && (line.starts_with("pub async fn ") || (line.starts_with("pub fn ") && returns_one)) {
            silent.push(line);
        }
        // Attributes stand between docs and function.
        tells &= line.starts_with("#[");
    }
    silent
}

#[test]
fn a_function_that_does_not_tell_is_seen() {
    let told = "/// # Cancel safety\n///\n/// Nothing happens.\n#[inline]\npub async fn a() {}\npub async fn b() {}\n";
    assert_eq!(silent_functions(told), ["pub async fn b() {}"]);
    assert_eq!(
        silent_functions("/// Waits.\npub fn c() -> impl Future<Output = ()> {"),
        ["pub fn c() -> impl Future<Output = ()> {"]
    );
}

#[test]
fn a_forbidden_name_is_seen() {
    let source = "use crate::{\n    error::Error,\n    redis::{Redis, x},\n};\nfn f() -> crate::Memory { made() } // crate::lease";
    let named: Vec<_> = modules_named(source).into_iter().collect();
    assert_eq!(named, ["Memory", "error", "redis"]);
}
