use super::source::Faults;

/// What a file says, whichever language it is written in, and where.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// Where it begins, in bytes.
    pub(super) at: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Text(String),
    /// A number or a boolean, as it is written.
    Plain(String),
    Nothing,
    List(Vec<Value>),
    Table(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) at: usize,
    pub(super) value: Value,
}

impl Value {
    pub(super) fn new(at: usize, kind: Kind) -> Self {
        Self { at, kind }
    }

    /// Names what it is, for messages.
    pub(super) fn called(&self) -> String {
        match &self.kind {
            Kind::Text(text) => format!("`{}`", shown(text)),
            Kind::Plain(text) => format!("`{text}`"),
            Kind::Nothing => "nothing".to_owned(),
            Kind::List(_) => "a list".to_owned(),
            Kind::Table(_) => "a table".to_owned(),
        }
    }

    /// Fills `${NAME}` and `${NAME:-default}` in all texts, and `$${` with `${`.
    ///
    /// It happens after the file was read, so that no value from outside can change what the file says.
    pub(super) fn fill(&mut self, variable: &dyn Fn(&str) -> Option<String>, faults: &mut Faults) {
        match &mut self.kind {
            Kind::Text(text) if text.contains("${") => match filled(text, variable) {
                Ok(plain) => *text = plain,
                Err(what) => faults.add(self.at, what),
            },
            Kind::List(values) => values.iter_mut().for_each(|value| value.fill(variable, faults)),
            Kind::Table(entries) => entries.iter_mut().for_each(|entry| entry.value.fill(variable, faults)),
            Kind::Text(_) | Kind::Plain(_) | Kind::Nothing => {}
        }
    }
}

/// Returns a text as a message shows it: on one line, and not too much of it.
pub(super) fn shown(text: &str) -> String {
    let escaped = text.escape_debug().to_string();
    match escaped.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &escaped[..end]),
        None => escaped,
    }
}

const MOST_SHOWN: usize = 60;

fn filled(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            plain.push_str(&rest[..start]);
            plain.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        plain.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let end = inside.find('}').ok_or_else(|| {
            format!("`{}`: `${{` without `}}`; write `${{NAME}}`, or `$${{` for `${{` itself", shown(text))
        })?;
        let (name, default) = match inside[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(format!(
                "`${{{}}}` names no environment variable; write `${{NAME}}` or `${{NAME:-default}}`",
                shown(&inside[..end])
            ));
        }
        match (variable(name).filter(|value| !value.is_empty() || default.is_none()), default) {
            (Some(value), _) => plain.push_str(&value),
            (None, Some(default)) => plain.push_str(default),
            (None, None) => {
                return Err(format!(
                    "environment variable `{name}` is not set; set it, or write `${{{name}:-default}}`"
                ));
            }
        }
        rest = &inside[end + 1..];
    }
    Ok(plain + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_filled_once_and_only_where_they_are_named() {
        let variable = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            "SLY" => Some("${A}\"\n[store]".to_owned()),
            _ => None,
        };
        let fill = |text: &str| filled(text, &variable);
        for (text, plain) in [
            ("${A}", "one"),
            ("x-${A}-${A}-$A", "x-one-one-$A"),
            ("${B:-two}", "two"),
            ("${A:-two}", "one"),
            ("${EMPTY:-two}", "two"),
            ("${EMPTY}", ""),
            ("${B:-}", ""),
            ("$${A}", "${A}"),
            ("${SLY}", "${A}\"\n[store]"),
        ] {
            assert_eq!(fill(text).as_deref(), Ok(plain), "{text}");
        }
        for (text, told) in
            [("${B}", "`B` is not set"), ("${A", "without `}`"), ("${}", "names no"), ("${A B}", "names no")]
        {
            let what = fill(text).expect_err(text);
            assert!(what.contains(told), "{what}");
        }
    }
}
