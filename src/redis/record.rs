//! Records: one function a script, arguments in the order of its header.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    Redis,
    lease::{integer, ms, number, unreadable},
    limit::Call,
    script::{ABANDON, BEGIN, COMPLETE, EXTEND_ATTEMPT, Script, TAKE},
    wake,
};
use crate::{
    error::Error,
    key::Key,
    lease::{Begin, Begun, OnUnknown, RecordStore, Reply, Token, Watch},
};

impl Redis {
    fn record(&self, name: &Key) -> Vec<u8> {
        self.connections.names().tagged("r1", 'r', name)
    }

    /// Calls a script that answers whether an attempt was the last one.
    fn ask_last(&self, script: &'static Script, name: &Key, arguments: Vec<Vec<u8>>) -> Reply<bool> {
        let (call, connections) = (Call::plain([self.record(name)], arguments), Arc::clone(&self.connections));
        Reply::pending(async move { Ok(integer(&connections.call(script, &call).await?)? == 1) })
    }
}

impl RecordStore for Redis {
    fn begin(&self, name: &Key, attempt: &Begin) -> Reply<Begun> {
        let flag = |is: bool| number(is.into());
        let arguments = vec![
            attempt.token.to_string().into_bytes(),
            ms(attempt.lease),
            ms(attempt.retain),
            attempt.print.clone(),
            flag(attempt.on_unknown == OnUnknown::TakeOver),
            flag(attempt.outcome.is_some()),
            attempt.outcome.clone().unwrap_or_default(),
        ];
        let (call, connections) = (Call::plain([self.record(name)], arguments), Arc::clone(&self.connections));
        Reply::pending(async move { begun(connections.call(&BEGIN, &call).await?) })
    }

    fn extend(&self, name: &Key, token: Token, lease: Duration) -> Reply<bool> {
        self.ask_last(&EXTEND_ATTEMPT, name, vec![token.to_string().into_bytes(), ms(lease)])
    }

    fn complete(&self, name: &Key, token: Token, outcome: &[u8], retain: Duration) -> Reply<bool> {
        let channel = self.connections.names().channel(name);
        let token = token.to_string().into_bytes();
        let arguments = vec![token, outcome.to_vec(), ms(retain), channel, name.as_bytes().to_vec()];
        self.ask_last(&COMPLETE, name, arguments)
    }

    fn abandon(&self, name: &Key, token: Token) -> Reply<bool> {
        let channel = self.connections.names().channel(name);
        let arguments = vec![token.to_string().into_bytes(), channel, name.as_bytes().to_vec()];
        self.ask_last(&ABANDON, name, arguments)
    }

    fn take(&self, name: &Key) -> Reply<Option<Vec<u8>>> {
        let (call, connections) = (Call::plain([self.record(name)], Vec::new()), Arc::clone(&self.connections));
        Reply::pending(async move {
            match connections.call(&TAKE, &call).await? {
                Value::Array(values) => match <[Value; 2]>::try_from(values) {
                    Ok([Value::Int(1), Value::BulkString(outcome)]) => Ok(Some(outcome)),
                    Err(values) if values == [Value::Int(0)] => Ok(None),
                    _ => Err(unreadable()),
                },
                _ => Err(unreadable()),
            }
        })
    }

    fn watch(&self, name: &Key) -> Reply<Watch> {
        let (key, connections, name) = (self.record(name), Arc::clone(&self.connections), *name);
        Reply::pending(async move {
            let connection = connections.of_key(&key).await?;
            wake::watch(connection, connections.names(), &name).await
        })
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn begun(reply: Value) -> Result<Begun, Error> {
    let Value::Array(values) = reply else { return Err(unreadable()) };
    let [state, one, two] = <[Value; 3]>::try_from(values).map_err(|_| unreadable())?;
    let attempt = |value: &Value| u32::try_from(integer(value)?).map_err(|_| unreadable());
    match (integer(&state)?, one, two) {
        (1, one, two) => Ok(Begun::Started { attempt: attempt(&one)?, fence: integer(&two)?.into() }),
        (2, left, Value::BulkString(print)) => {
            Ok(Begun::Running { left: Duration::from_millis(integer(&left)?), print })
        }
        (3, Value::BulkString(outcome), Value::BulkString(print)) => Ok(Begun::Done { outcome, print }),
        (4, one, Value::BulkString(print)) => Ok(Begun::Unknown { attempt: attempt(&one)?, print }),
        _ => Err(unreadable()),
    }
}
