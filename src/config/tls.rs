//! Which certificates count on connections to Redis, by the files that hold them.

use std::fs;

use super::{read::Fields, source::Faults, value::shown};
#[cfg(feature = "redis")]
use crate::{error::Error, redis::Redis};

/// What a file says of TLS, with what the files hold that it names.
#[derive(Clone, Debug)]
pub(super) struct TlsDraft {
    pub(super) at: usize,
    /// Under which names they are.
    pub(super) paths: [Option<String>; 3],
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing is done with them then"))]
    held: [Option<Vec<u8>>; 3],
}

impl TlsDraft {
    pub(super) fn read(fields: Fields<'_>, faults: &mut Faults) -> Self {
        let texts = KEYS.map(|name| fields.text(name, faults));
        let held = [0, 1, 2].map(|place| {
            let (path, at) = texts[place]?;
            let tell = |error| faults.add(at, format!("`{}`: `{}` cannot be read: {error}", KEYS[place], shown(path)));
            fs::read(path).map_err(tell).ok()
        });
        match (texts[1], texts[2]) {
            (Some((_, at)), None) => faults.add(at, "`cert` is there without its private `key`; write both"),
            (None, Some((_, at))) => faults.add(at, "`key` is there without its certificate, `cert`; write both"),
            _ => {}
        }
        Self { at: fields.at, paths: texts.map(|text| text.map(|(path, _)| path.to_owned())), held }
    }

    /// Has a store trust and show what the files hold.
    #[cfg(feature = "tls")]
    pub(super) fn apply(&self, redis: Redis) -> Result<Redis, Error> {
        let [ca, cert, key] = &self.held;
        let mut tls = crate::redis::Tls::new();
        if let Some(ca) = ca {
            tls = tls.ca_pem(ca.as_slice());
        }
        if let (Some(cert), Some(key)) = (cert, key) {
            tls = tls.client_pem(cert.as_slice(), key.as_slice());
        }
        redis.tls(&tls)
    }

    #[cfg(all(feature = "redis", not(feature = "tls")))]
    pub(super) fn apply(&self, _: Redis) -> Result<Redis, Error> {
        Err(Error::invalid("tls: the service is built without the feature `tls`"))
    }
}

const KEYS: [&str; 3] = ["ca", "cert", "key"];
