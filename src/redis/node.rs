//! One server of several: which run of it is spoken to.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    Redis,
    lease::{integer, leases_and_counters, number, unreadable},
    limit::Call,
    script::RAISE,
};
use crate::{
    error::Error,
    lease::{Clock, Fence, Incarnation, LeaseId, Node, Reply},
};

/// What a server said of its run, and when.
#[derive(Clone)]
pub(super) struct Run {
    told: Incarnation,
    at: Duration,
}

impl Node for Redis {
    fn raise(&self, id: &LeaseId, fences: &[Fence]) -> Reply<bool> {
        let token = id.token().to_string().into_bytes();
        let arguments = [token].into_iter().chain(fences.iter().map(|fence| number((*fence).into()))).collect();
        let call = Call::plain(leases_and_counters(self.connections.names(), id), arguments);
        let connections = Arc::clone(&self.connections);
        Reply::pending(async move { Ok(integer(&connections.call(&RAISE, &call).await?)? == 1) })
    }

    /// Asks once a connection: another run of the server is another connection.
    fn incarnation(&self) -> Reply<Incarnation> {
        let connections = Arc::clone(&self.connections);
        if connections.names().apart {
            return Reply::ready(Err(Error::invalid(
                "redlock over a Cluster: its servers know each other; name servers that are independent",
            )));
        }
        Reply::pending(async move {
            let connection = connections.of_key(&[]).await?;
            let run = match connection.run().get() {
                Some(run) => run.clone(),
                None => {
                    let run = Run::read(&connection.send(&redis::cmd("INFO")).await.map_err(not_allowed)?)?;
                    connection.run().get_or_init(|| run).clone()
                }
            };
            let up_for = run.told.up_for + Clock::default().now().saturating_sub(run.at);
            Ok(Incarnation::new(run.told.run, up_for, run.told.is_master))
        })
    }
}

impl Run {
    fn read(answer: &Value) -> Result<Self, Error> {
        let at = Clock::default().now();
        let text: String = redis::from_redis_value_ref(answer).map_err(|_| unreadable())?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let (Some(run), Some(role)) = (field("run_id:"), field("role:")) else { return Err(unreadable()) };
        let up_for = field("uptime_in_seconds:").and_then(|seconds| seconds.parse().ok()).ok_or_else(unreadable)?;
        Ok(Self { told: Incarnation::new(run, Duration::from_secs(up_for), role == "master"), at })
    }
}

fn not_allowed(error: Error) -> Error {
    if !error.to_string().contains("NOPERM") {
        return error;
    }
    Error::invalid("redlock asks each server by INFO which run of it that is: add +info to the ACL line of its user")
        .with_source(error)
}
