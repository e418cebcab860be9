use std::{borrow::Cow, fmt};

use http::request::Parts;

use crate::error::Error;

/// A pattern of paths as axum has them: `/users/{id}`, `/api/{*rest}`.
#[derive(Clone, Debug)]
pub(crate) struct PathPattern {
    /// Matches the pattern as it is written and, if that is something else, as it is meant.
    routers: Vec<matchit::Router<()>>,
}

impl PathPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// If it does not begin with a slash, or its parameters are not written as axum's are.
    pub(crate) fn new(pattern: &str) -> Result<Self, Error> {
        let wrong = |why: &dyn fmt::Display| {
            let what = "write /users/{id} or /api/{*rest}, with a slash in front";
            Error::invalid(format!("path `{}` cannot be matched: {why}; {what}", pattern.escape_debug()))
        };
        if !pattern.starts_with('/') {
            return Err(wrong(&"it does not begin with a slash"));
        }
        if pattern.split('/').any(|segment| segment.starts_with([':', '*'])) {
            return Err(wrong(&"a parameter is written {id} or {*rest}"));
        }
        let router = |pattern: &str| {
            let mut router = matchit::Router::new();
            router.insert(pattern, ()).map(|()| router).map_err(|error| wrong(&error))
        };
        let plain = normalised(pattern);
        let mut routers = vec![router(pattern)?];
        if plain != pattern {
            routers.push(router(&plain)?);
        }
        Ok(Self { routers })
    }

    /// Looks at the path as it stands, which is what a router goes by, and as it is meant: neither is a way around.
    pub(crate) fn matches(&self, request: &Parts) -> bool {
        let any = |path: &str| self.routers.iter().any(|router| router.at(path).is_ok());
        any(raw_path(request)) || any(&asked_path(request))
    }
}

/// Returns the path that the client asked for, the same for all its spellings.
///
/// Inside a nested axum router that is the whole path and not what is left of it. Letters, digits and `-._~` are
/// written plainly, other escapes in capitals, dot segments are resolved (RFC 3986, sections 6.2.2.1 to 6.2.2.3),
/// and several slashes are one, so that `//admin` is not another place than `/admin`.
pub(super) fn asked_path(request: &Parts) -> Cow<'_, str> {
    normalised(raw_path(request))
}

/// Returns the path that the client asked for as it stands, which is what routers go by.
pub(super) fn raw_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = request.extensions.get() {
        return uri.path();
    }
    request.uri.path()
}

pub(super) fn normalised(path: &str) -> Cow<'_, str> {
    let plain = !path.contains('%') && !path.contains("//") && !path.contains("/.") && path.starts_with('/');
    if plain { Cow::Borrowed(path) } else { Cow::Owned(resolve(&unescape(path))) }
}

fn unescape(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(code) = code else {
            plain.push('%');
            rest = &rest[at + 1..];
            continue;
        };
        match u8::from_str_radix(code, 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => plain.push(char::from(byte)),
            _ => {
                plain.push('%');
                plain.push_str(&code.to_ascii_uppercase());
            }
        }
        rest = &rest[at + 3..];
    }
    plain + rest
}

fn resolve(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let folder = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    let end = if folder && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::normalised;

    #[test]
    fn all_spellings_of_a_path_are_one() {
        for (path, one) in [
            ("/", "/"),
            ("/api/users", "/api/users"),
            ("//api///users", "/api/users"),
            ("/api/./users", "/api/users"),
            ("/x/../api/users", "/api/users"),
            ("/%61pi/users", "/api/users"),
            ("/api%2fusers", "/api%2Fusers"),
            ("/x/%2e%2E/api/users", "/api/users"),
            ("/../../api/users", "/api/users"),
            ("/api/users/", "/api/users/"),
            ("/api/users/.", "/api/users/"),
            ("/api/users/x/..", "/api/users/"),
            ("/..", "/"),
            ("/50%", "/50%"),
            ("/%zz/%", "/%zz/%"),
            ("/%é1", "/%é1"),
            ("*", "/*"),
            ("", "/"),
        ] {
            assert_eq!(normalised(path), one, "{path}");
            assert_eq!(normalised(&normalised(path)), one, "{path}");
        }
    }
}
