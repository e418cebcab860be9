use std::{sync::Arc, time::Duration};

use http::request::Parts;
use tower_layer::Layer;

use super::{MessageLimit, body::Metered};
use crate::{
    error::Error,
    layer::{Rule, key::NoKey, rate_limit::BuiltRule},
    limiter::{Limiter, Registration},
};

/// Limits the messages that a gRPC client sends, each by itself; a [`RateLimitLayer`](crate::RateLimitLayer) counts calls.
///
/// Once a stream is open, its messages pass every limit of calls. Here each message that comes in is one unit (or the
/// rule's cost) under all rules that match its call. One that is over the limit ends the call with status 8, between two
/// messages: in the header block as long as nothing has been answered, else in the trailers. With
/// [`max_wait`](Self::max_wait) it waits for its turn instead, and the client feels that as back-pressure.
///
/// Calls are told by their content type, as of gRPC and gRPC-Web; other requests pass untouched. It changes the type of
/// the request's body to [`MessageBody`](super::MessageBody), which axum's routers and tonic's services take.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Memory, Quota, RateLimitLayer, Rule, layer::{MessageLimitLayer, client_ip}};
///
/// let limiter = Limiter::new(Memory::new());
/// let calls = RateLimitLayer::new(limiter.clone()).rule(Rule::new("calls", Quota::per_minute(60)));
/// let messages = MessageLimitLayer::new(limiter)
///     .rule(Rule::new("messages", Quota::per_second(100)).by(client_ip()))
///     .max_wait(Duration::from_secs(1));
/// let (_, health) = tonic_health::server::health_reporter();
/// let server = tonic::transport::Server::builder().layer(messages).layer(calls).add_service(health);
/// # let _ = server;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MessageLimitLayer {
    shared: Arc<Shared>,
}

#[derive(Clone, Debug)]
pub(super) struct Shared {
    limiter: Limiter,
    rules: Vec<BuiltRule>,
    max_wait: Duration,
    /// The names that the rules bear.
    names: Vec<Arc<Registration>>,
}

impl MessageLimitLayer {
    /// Makes a layer without rules, which lets every message through.
    pub fn new(limiter: Limiter) -> Self {
        let shared = Shared { limiter, rules: Vec::new(), max_wait: Duration::ZERO, names: Vec::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a rule. All rules that match a call are asked together for each of its messages.
    ///
    /// # Panics
    ///
    /// If the rule cannot be used: [`try_rule`](Self::try_rule) tells the same as an error.
    pub fn rule(self, rule: Rule) -> Self {
        match self.try_rule(rule) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// As of [`RateLimitLayer::try_rule`](crate::RateLimitLayer::try_rule).
    pub fn try_rule(mut self, rule: Rule) -> Result<Self, Error> {
        let rule = rule.build(self.shared.limiter.secrets())?;
        let shared = Arc::make_mut(&mut self.shared);
        shared.names.push(Arc::new(shared.limiter.register(&rule.policy)?));
        shared.rules.push(rule);
        Ok(self)
    }

    /// Lets a message wait for its turn, so long at most; the default is not at all.
    ///
    /// Meanwhile nothing more is read from the client.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        Arc::make_mut(&mut self.shared).max_wait = max_wait;
        self
    }
}

impl<S> Layer<S> for MessageLimitLayer {
    type Service = MessageLimit<S>;

    fn layer(&self, inner: S) -> MessageLimit<S> {
        MessageLimit::new(inner, Arc::clone(&self.shared))
    }
}

impl Shared {
    /// Returns what each message of a call is asked for; `None` if nothing is.
    pub(super) fn metered(&self, request: &Parts) -> Result<Option<Metered>, NoKey> {
        let mut metered = Metered::new(self.limiter.clone(), self.max_wait);
        for rule in self.rules.iter().filter(|rule| rule.matches(request)) {
            match rule.demand(request, self.limiter.secrets()) {
                Ok(demand) => metered.push(&demand, rule.blame()),
                Err(NoKey::Skip) => {}
                Err(no_key) => return Err(no_key),
            }
        }
        Ok((!metered.is_empty()).then_some(metered))
    }
}
