use http::{header, request::Parts};

use super::key::{KeyExtractor, Missing, NoKey, missing_setters};
use crate::key::KeyWriter;

/// Counts for each value of a cookie; made by [`cookie`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Cookie {
    name: String,
    secret: bool,
    missing: Missing,
}

/// Counts for each value of the cookie `name` (RFC 6265, section 5.4), kept as a hash only.
///
/// Names are told apart by case. A cookie that is there twice counts as missing, since it could not be told which one
/// the application goes by; such a request is not skipped, or doubling a cookie would be a way around the limit.
///
/// ```
/// use tollgate::{Quota, Rule, layer::cookie};
///
/// let by_session = Rule::new("session", Quota::per_minute(100)).by(cookie("session").or_skip());
/// # let _ = by_session;
/// ```
pub fn cookie(name: impl Into<String>) -> Cookie {
    Cookie { name: name.into(), secret: true, missing: Missing::default() }
}

impl Cookie {
    /// Keeps the value as it is, readable in the store.
    pub fn plain(mut self) -> Self {
        self.secret = false;
        self
    }

    missing_setters!();
}

impl KeyExtractor for Cookie {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        // HTTP/2 may split them over several fields (RFC 9113, section 8.2.3).
        let fields = request.headers.get_all(header::COOKIE).iter();
        let pairs = fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        let mut values = pairs.filter_map(|pair| pair.strip_prefix(self.name.as_bytes())?.strip_prefix(b"="));
        match (values.next(), values.next()) {
            (Some(value), None) if self.secret => key.secret(value),
            (Some(value), None) => key.text(value),
            (Some(_), Some(_)) if matches!(self.missing, Missing::Skip) => key.absent(),
            _ => return self.missing.apply(&format_args!("single {} cookie", self.name), key),
        }
        Ok(())
    }

    fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        let value = values.next().unwrap_or_default();
        if self.secret { key.secret(value) } else { key.text(value) }
    }

    fn tells_apart(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::{Key, Secrets};

    fn key(cookie: &Cookie, fields: &[&str]) -> Result<Key, NoKey> {
        let mut request = Request::new(());
        for field in fields {
            request.headers_mut().append(header::COOKIE, field.parse().expect("a value"));
        }
        let mut key = Key::EMPTY;
        let mut writer = KeyWriter::new(&Secrets::UNKEYED, &mut key);
        cookie.extract(&request.into_parts().0, &mut writer)?;
        writer.finish();
        Ok(key)
    }

    #[test]
    fn the_one_cookie_of_that_name_is_the_key() {
        let plain = cookie("sid").plain();
        for fields in [&["sid=abc"][..], &["x=1; sid=abc; asid=2"], &["x=1", "sid=abc"], &["sid=abc;sid2=x"]] {
            assert_eq!(key(&plain, fields), Ok(Key::from("abc")), "{fields:?}");
        }
        assert_eq!(key(&plain, &["sid="]), Ok(Key::from("")));
        assert_eq!(key(&plain, &["sid=a=b"]), Ok(Key::from("a=b")));
        let absent = key(&plain, &[]).expect("shared");
        for fields in [&["sid=a; sid=b"][..], &["SID=a"], &["sid"]] {
            assert_eq!(key(&plain, fields), Ok(absent), "{fields:?}");
        }
        assert!(
            matches!(key(&plain.clone().or_reject(), &[]), Err(NoKey::Reject(what)) if what.contains("sid cookie"))
        );
        assert_eq!(key(&plain.clone().or_skip(), &["x=1"]), Err(NoKey::Skip));
        assert_eq!(key(&plain.or_skip(), &["sid=a", "sid=b"]), Ok(absent), "doubling it is no way around");
        let hashed = key(&cookie("sid"), &["sid=abc"]).expect("a key");
        assert!(!hashed.as_str().contains("abc"));
    }
}
