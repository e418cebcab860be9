use std::{fmt, marker::PhantomData, net::IpAddr, sync::Arc};

use http::{HeaderName, header, request::Parts};

use super::{grpc, path::asked_path, warn::Absence};
use crate::{error::Error, key::KeyWriter};

/// Tells whose request it is.
///
/// Ready-made: [`client_ip`](super::client_ip()), [`header()`], [`cookie`](super::cookie()), [`global`], [`method`], [`path()`], `matched_path`,
/// [`grpc_service`], [`grpc_method`], [`extension`], [`key_fn`], and tuples of these. Bring your own for the rest:
///
/// ```
/// use http::request::Parts;
/// use tollgate::{KeyWriter, layer::{KeyExtractor, NoKey}};
///
/// #[derive(Debug)]
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
///         let host = request.headers.get("host").and_then(|host| host.to_str().ok());
///         let tenant = host.and_then(|host| host.split('.').next()).ok_or(NoKey::Skip)?;
///         key.text(tenant);
///         Ok(())
///     }
/// }
/// # let _ = tollgate::layer::Rule::new("tenant", tollgate::Quota::per_minute(1)).by(Tenant);
/// ```
pub trait KeyExtractor: fmt::Debug + Send + Sync + 'static {
    /// Writes the key, or says what to do without one.
    ///
    /// # Errors
    ///
    /// If the request has no key of this kind, and is not to be counted with others that have none.
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey>;

    /// Says whether it can be used at all; a layer asks when it takes a rule.
    ///
    /// # Errors
    ///
    /// If it was set up wrongly. The text says what to write instead.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the client's whole address if that is what it goes by; the default is that it does not.
    ///
    /// Exceptions for ranges of addresses are found by it.
    fn address(&self, request: &Parts) -> Option<IpAddr> {
        let _ = request;
        None
    }

    /// Writes the key of requests that have these values, taking as many as a key has parts; the default is one text.
    ///
    /// Exceptions for keys are found by it, so it must write what [`extract`](Self::extract) does.
    fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        key.text(values.next().unwrap_or_default());
    }

    /// Returns true if an address shares its key with no other, so that an exception for it is found by its key.
    #[doc(hidden)]
    fn is_alone(&self, address: IpAddr) -> bool {
        let _ = address;
        false
    }

    /// Returns true if it is meant to give each client a key of its own; the default is false.
    ///
    /// A warning tells when a rule by such a key has seen a thousand requests and no second key.
    fn tells_apart(&self) -> bool {
        false
    }
}

impl<T: KeyExtractor + ?Sized> KeyExtractor for Arc<T> {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        (**self).extract(request, key)
    }

    fn check(&self) -> Result<(), Error> {
        (**self).check()
    }

    fn tells_apart(&self) -> bool {
        (**self).tells_apart()
    }

    fn address(&self, request: &Parts) -> Option<IpAddr> {
        (**self).address(request)
    }

    fn is_alone(&self, address: IpAddr) -> bool {
        (**self).is_alone(address)
    }

    fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        (**self).write_values(values, key);
    }
}

/// What to do with a request that has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// The rule does not apply to it.
    Skip,
    /// It is refused with HTTP 400 (gRPC status 3); the text says what is missing and is shown to the client.
    Reject(String),
    /// It is refused with HTTP 403 (gRPC status 7).
    Forbidden,
    /// The server does not say who the peer is: HTTP 500 (gRPC status 13), since that is a fault of its set-up.
    PeerUnknown,
}

/// What an extractor does with a request that lacks its value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Missing {
    #[default]
    Shared,
    Skip,
    Reject,
}

impl Missing {
    pub(super) fn apply(self, what: &dyn fmt::Display, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match self {
            Self::Shared => {
                key.absent();
                Ok(())
            }
            Self::Skip => Err(NoKey::Skip),
            Self::Reject => Err(NoKey::Reject(format!("the request has no {what}"))),
        }
    }
}

/// Gives an extractor the setters that say what happens without a value.
macro_rules! missing_setters {
    () => {
        /// Does not apply the rule to requests without a value; the default is to count them all together.
        pub const fn or_skip(mut self) -> Self {
            self.missing = Missing::Skip;
            self
        }

        /// Refuses requests without a value; the default is to count them all together.
        pub const fn or_reject(mut self) -> Self {
            self.missing = Missing::Reject;
            self
        }
    };
}

pub(super) use missing_setters;

/// Counts all requests together; made by [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global;

/// Counts all requests together.
///
/// ```
/// use tollgate::{Quota, Rule, layer::global};
///
/// let all = Rule::new("all", Quota::per_second(2_000)).by(global()).reduced_capacity();
/// # let _ = all;
/// ```
pub const fn global() -> Global {
    Global
}

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        key.text("all");
        Ok(())
    }

    fn write_values(&self, _: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
        key.text("all");
    }
}

/// Counts for each value of a header; made by [`header()`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Header {
    name: HeaderName,
    secret: bool,
    missing: Missing,
}

/// Counts for each value of the header `name`, byte by byte, whether it is text or not.
///
/// What usually holds a secret is kept only as a hash: `authorization`, `cookie`, and names with `key`, `token`,
/// `secret`, `auth`, `jwt`, `password`, `credential`, `signature` or `session` in them. See
/// [`Limiter::key_secret`](crate::Limiter::key_secret).
///
/// A header that is there twice counts as missing, since it could not be told which one the application goes by.
/// Such a request is not skipped, or doubling a header would be a way around the limit.
///
/// # Panics
///
/// If `name` is no header name. Use [`Header::new`] for names from outside.
///
/// ```
/// use tollgate::{Quota, Rule, layer::header};
///
/// let by_key = Rule::new("key", Quota::per_minute(100)).by(header("x-api-key").or_reject());
/// let by_region = Rule::new("region", Quota::per_second(500)).by(header("x-region"));
/// # let _ = (by_key, by_region);
/// ```
pub fn header(name: &str) -> Header {
    match name.parse() {
        Ok(name) => Header::new(name),
        Err(_) => panic!("`{}` is not a header name", name.escape_debug()),
    }
}

impl Header {
    /// Counts for each value of the header `name`.
    pub fn new(name: HeaderName) -> Self {
        let secret = is_secret(&name);
        Self { name, secret, missing: Missing::default() }
    }

    /// Keeps the value as a hash only.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Keeps the value as it is, readable in the store.
    pub const fn plain(mut self) -> Self {
        self.secret = false;
        self
    }

    missing_setters!();
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        let mut values = request.headers.get_all(&self.name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) if self.secret => key.secret(value.as_bytes()),
            (Some(value), None) => key.text(value.as_bytes()),
            (Some(_), Some(_)) if matches!(self.missing, Missing::Skip) => key.absent(),
            _ => return self.missing.apply(&format_args!("single {} header", self.name), key),
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

fn is_secret(name: &HeaderName) -> bool {
    let parts = ["key", "token", "secret", "auth", "jwt", "password", "credential", "signature", "session"];
    *name == header::COOKIE || parts.iter().any(|part| name.as_str().contains(part))
}

/// Counts for each HTTP method; made by [`method`].
#[derive(Clone, Copy, Debug)]
pub struct Method;

/// Counts for each HTTP method.
///
/// ```
/// use tollgate::{Quota, Rule, layer::{client_ip, method}};
///
/// let by_method = Rule::new("method", Quota::per_minute(100)).by((client_ip(), method()));
/// # let _ = by_method;
/// ```
pub const fn method() -> Method {
    Method
}

impl KeyExtractor for Method {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        key.text(request.method.as_str());
        Ok(())
    }
}

/// Counts for each path; made by [`path()`].
#[derive(Clone, Copy, Debug)]
pub struct Path;

/// Counts for each path that is asked for, without the query, the same for all its spellings.
///
/// Clients can ask for any number of paths; `matched_path` knows only those that are routed.
///
/// ```
/// use tollgate::{Quota, Rule, layer::{client_ip, path}};
///
/// let by_page = Rule::new("page", Quota::per_minute(20)).by((client_ip(), path()));
/// # let _ = by_page;
/// ```
pub const fn path() -> Path {
    Path
}

impl KeyExtractor for Path {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        key.text(asked_path(request).as_bytes());
        Ok(())
    }
}

/// Counts for each route; made by [`matched_path`].
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct MatchedPath {
    missing: Missing,
}

/// Counts for each route of an axum router, such as `/users/{id}`.
///
/// The router knows the route only in layers added by `route_layer` or `layer` to that router itself.
///
/// ```
/// use tollgate::{Quota, Rule, layer::{client_ip, matched_path}};
///
/// let by_route = Rule::new("route", Quota::per_minute(20)).by((client_ip(), matched_path()));
/// # let _ = by_route;
/// ```
#[cfg(feature = "axum")]
pub const fn matched_path() -> MatchedPath {
    MatchedPath { missing: Missing::Shared }
}

#[cfg(feature = "axum")]
impl MatchedPath {
    missing_setters!();
}

#[cfg(feature = "axum")]
impl KeyExtractor for MatchedPath {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match request.extensions.get::<axum::extract::MatchedPath>() {
            Some(path) => key.text(path.as_str()),
            None => return self.missing.apply(&"matched route", key),
        }
        Ok(())
    }
}

/// Counts for each gRPC service; made by [`grpc_service`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct GrpcService {
    missing: Missing,
}

/// Counts for each gRPC service, such as `grpc.health.v1.Health`.
///
/// ```
/// use tollgate::{Quota, Rule, layer::grpc_service};
///
/// let by_service = Rule::new("service", Quota::per_second(500)).by(grpc_service().or_skip());
/// # let _ = by_service;
/// ```
pub const fn grpc_service() -> GrpcService {
    GrpcService { missing: Missing::Shared }
}

impl GrpcService {
    missing_setters!();
}

impl KeyExtractor for GrpcService {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match grpc::service_and_method(request) {
            Some((service, _)) => key.text(service),
            None => return self.missing.apply(&"gRPC service", key),
        }
        Ok(())
    }
}

/// Counts for each gRPC method; made by [`grpc_method`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct GrpcMethod {
    missing: Missing,
}

/// Counts for each gRPC method with its service, such as `grpc.health.v1.Health/Check`.
///
/// ```
/// use tollgate::{Quota, Rule, layer::{client_ip, grpc_method}};
///
/// let by_call = Rule::new("call", Quota::per_second(5)).by((client_ip(), grpc_method()));
/// # let _ = by_call;
/// ```
pub const fn grpc_method() -> GrpcMethod {
    GrpcMethod { missing: Missing::Shared }
}

impl GrpcMethod {
    missing_setters!();
}

impl KeyExtractor for GrpcMethod {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match grpc::service_and_method(request) {
            Some((service, method)) => key.display(format_args!("{service}/{method}")),
            None => return self.missing.apply(&"gRPC method", key),
        }
        Ok(())
    }
}

/// Counts for each value that an earlier layer left in the request's extensions; made by [`extension`].
#[must_use]
pub struct Extension<T, F> {
    read: F,
    missing: Missing,
    absence: Absence,
    of: PhantomData<fn(&T)>,
}

/// Counts for each value read from an extension of type `T`, such as the user that authentication found.
///
/// ```
/// use tollgate::{Quota, layer::{Rule, extension}};
///
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// let rule = Rule::new("per-user", Quota::per_minute(60)).by(extension::<User>(|user| user.id.to_string()));
/// # let _ = rule;
/// ```
pub fn extension<T: Send + Sync + 'static>(
    read: impl Fn(&T) -> String + Send + Sync + 'static,
) -> Extension<T, impl Fn(&T) -> String + Send + Sync + 'static> {
    Extension { read, missing: Missing::Shared, absence: Absence::default(), of: PhantomData }
}

impl<T, F> Extension<T, F> {
    missing_setters!();
}

impl<T, F> KeyExtractor for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> String + Send + Sync + 'static,
{
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match request.extensions.get::<T>() {
            Some(value) => {
                self.absence.found();
                key.text((self.read)(value));
            }
            None => {
                self.absence.missed(std::any::type_name::<T>());
                return self.missing.apply(&"identity", key);
            }
        }
        Ok(())
    }

    fn tells_apart(&self) -> bool {
        true
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>", std::any::type_name::<T>())
    }
}

/// Counts for each value that a function returns; made by [`key_fn`].
#[must_use]
pub struct KeyFn<F> {
    read: F,
    missing: Missing,
}

/// Counts for each value that `read` returns; `None` means that the request has none.
///
/// ```
/// use tollgate::{Quota, layer::{Rule, key_fn}};
///
/// let by_host = key_fn(|request| Some(request.headers.get("host")?.to_str().ok()?.to_lowercase()));
/// let rule = Rule::new("per-host", Quota::per_second(100)).by(by_host.or_skip());
/// # let _ = rule;
/// ```
pub fn key_fn<F: Fn(&Parts) -> Option<String> + Send + Sync + 'static>(read: F) -> KeyFn<F> {
    KeyFn { read, missing: Missing::Shared }
}

impl<F> KeyFn<F> {
    missing_setters!();
}

impl<F: Fn(&Parts) -> Option<String> + Send + Sync + 'static> KeyExtractor for KeyFn<F> {
    fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
        match (self.read)(request) {
            Some(value) => key.text(value),
            None => return self.missing.apply(&"key", key),
        }
        Ok(())
    }

    fn tells_apart(&self) -> bool {
        true
    }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFn")
    }
}

/// Makes a tuple of extractors one whose key has the parts of each, kept apart.
macro_rules! tuple_extractor {
    ($($part:ident)+) => {
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            #[allow(non_snake_case)]
            fn extract(&self, request: &Parts, key: &mut KeyWriter<'_>) -> Result<(), NoKey> {
                let ($($part,)+) = self;
                $($part.extract(request, key)?;)+
                Ok(())
            }

            #[allow(non_snake_case)]
            fn check(&self) -> Result<(), Error> {
                let ($($part,)+) = self;
                $($part.check()?;)+
                Ok(())
            }

            #[allow(non_snake_case)]
            fn tells_apart(&self) -> bool {
                let ($($part,)+) = self;
                $($part.tells_apart())||+
            }

            #[allow(non_snake_case)]
            fn write_values(&self, values: &mut dyn Iterator<Item = &str>, key: &mut KeyWriter<'_>) {
                let ($($part,)+) = self;
                $($part.write_values(values, key);)+
            }
        }
    };
}

tuple_extractor!(A B);
tuple_extractor!(A B C);
tuple_extractor!(A B C D);
