//! Queues of jobs: one function a script, arguments in the order of its header.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    Redis,
    lease::{integer, ms, number, unreadable},
    limit::Call,
    script::{ACK, BURY, CLAIM, EXTEND_CLAIM, LIST_DEAD, NACK, PUSH, REQUEUE, Script},
    wake,
};
use crate::{
    error::Error,
    key::Key,
    lease::{ClaimAsk, Claimed, DeadJob, Job, NewJob, QueueStore, Reply, Token, Watch},
};

impl Redis {
    fn queue_keys<const N: usize>(&self, queue: &Key, letters: [char; N]) -> [Vec<u8>; N] {
        letters.map(|letter| self.connections.names().tagged("q1", letter, queue))
    }

    /// Returns where workers are told, and what.
    fn queue_channel(&self, queue: &Key) -> [Vec<u8>; 2] {
        [self.connections.names().channel(queue), queue.as_bytes().to_vec()]
    }

    /// Calls a script that answers whether it could be done.
    fn ask_queue<const N: usize>(
        &self,
        script: &'static Script,
        keys: [Vec<u8>; N],
        arguments: Vec<Vec<u8>>,
    ) -> Reply<bool> {
        let (call, connections) = (Call::plain(keys, arguments), Arc::clone(&self.connections));
        Reply::pending(async move { Ok(integer(&connections.call(script, &call).await?)? == 1) })
    }
}

impl QueueStore for Redis {
    fn push(&self, queue: &Key, job: &NewJob) -> Reply<bool> {
        let keys = self.queue_keys(queue, [READY, DELAYED, PAYLOADS, METAS]);
        let mut arguments =
            vec![job.id.as_bytes().to_vec(), job.payload.clone(), number(job.priority.into()), ms(job.delay)];
        arguments.extend(self.queue_channel(queue));
        self.ask_queue(&PUSH, keys, arguments)
    }

    fn claim(&self, queue: &Key, ask: &ClaimAsk) -> Reply<Claimed> {
        let keys = self.queue_keys(queue, [READY, DELAYED, PAYLOADS, METAS, CLAIMED, DEAD]);
        let token = ask.token.to_string().into_bytes();
        let arguments = vec![token, number(ask.most.into()), ms(ask.visibility), number(ask.most_attempts.into())];
        let (call, connections) = (Call::plain(keys, arguments), Arc::clone(&self.connections));
        Reply::pending(async move { claimed(&connections.call(&CLAIM, &call).await?) })
    }

    fn extend(&self, queue: &Key, id: &str, token: Token, visibility: Duration) -> Reply<bool> {
        let arguments = vec![id.into(), token.to_string().into_bytes(), ms(visibility)];
        self.ask_queue(&EXTEND_CLAIM, self.queue_keys(queue, [METAS, CLAIMED]), arguments)
    }

    fn ack(&self, queue: &Key, id: &str, token: Token) -> Reply<bool> {
        let arguments = vec![id.into(), token.to_string().into_bytes()];
        self.ask_queue(&ACK, self.queue_keys(queue, [METAS, CLAIMED, PAYLOADS]), arguments)
    }

    fn nack(&self, queue: &Key, id: &str, token: Token, after: Duration) -> Reply<bool> {
        let mut arguments = vec![id.into(), token.to_string().into_bytes(), ms(after)];
        arguments.extend(self.queue_channel(queue));
        self.ask_queue(&NACK, self.queue_keys(queue, [METAS, CLAIMED, DELAYED]), arguments)
    }

    fn bury(&self, queue: &Key, id: &str, token: Token, reason: &str) -> Reply<bool> {
        let arguments = vec![id.into(), token.to_string().into_bytes(), reason.into()];
        self.ask_queue(&BURY, self.queue_keys(queue, [METAS, CLAIMED, DEAD]), arguments)
    }

    fn list(&self, queue: &Key, most: u32) -> Reply<Vec<DeadJob>> {
        let keys = self.queue_keys(queue, [METAS, PAYLOADS, DEAD]);
        let (call, connections) = (Call::plain(keys, vec![number(most.into())]), Arc::clone(&self.connections));
        Reply::pending(async move { dead(&connections.call(&LIST_DEAD, &call).await?) })
    }

    fn requeue(&self, queue: &Key, id: &str) -> Reply<bool> {
        let mut arguments = vec![id.into()];
        arguments.extend(self.queue_channel(queue));
        self.ask_queue(&REQUEUE, self.queue_keys(queue, [METAS, DEAD, DELAYED]), arguments)
    }

    fn watch(&self, queue: &Key) -> Reply<Watch> {
        let [key] = self.queue_keys(queue, [READY]);
        let (connections, queue) = (Arc::clone(&self.connections), *queue);
        Reply::pending(async move {
            let connection = connections.of_key(&key).await?;
            wake::watch(connection, connections.names(), &queue).await
        })
    }
}

fn claimed(reply: &Value) -> Result<Claimed, Error> {
    let Value::Array(values) = reply else { return Err(unreadable()) };
    let (next, jobs) = values.split_first().ok_or_else(unreadable)?;
    let next_in = match next {
        Value::Int(-1) => None,
        next => Some(Duration::from_millis(integer(next)?)),
    };
    let job = |values: &[Value]| {
        let [id, attempt, fence, Value::BulkString(payload)] = values else { return Err(unreadable()) };
        Ok(Job::new(text(id)?, payload.clone(), narrow(attempt)?, integer(fence)?.into()))
    };
    Ok(Claimed::new(jobs.chunks(4).map(job).collect::<Result<_, _>>()?, next_in))
}

fn dead(reply: &Value) -> Result<Vec<DeadJob>, Error> {
    let Value::Array(values) = reply else { return Err(unreadable()) };
    let job = |values: &[Value]| {
        let [id, attempts, reason, Value::BulkString(payload)] = values else { return Err(unreadable()) };
        Ok(DeadJob::new(text(id)?, payload.clone(), narrow(attempts)?, text(reason)?))
    };
    values.chunks(4).map(job).collect()
}

fn text(value: &Value) -> Result<String, Error> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(unreadable()),
    }
}

fn narrow(value: &Value) -> Result<u32, Error> {
    u32::try_from(integer(value)?).map_err(|_| unreadable())
}

/// What a key holds, by its letter.
const READY: char = 'r';
const DELAYED: char = 'd';
const PAYLOADS: char = 'j';
const METAS: char = 'm';
const CLAIMED: char = 'c';
const DEAD: char = 'x';
