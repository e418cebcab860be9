//! A limit on the messages that gRPC clients stream.

mod body;
mod frames;
mod future;
mod layer;
mod link;
mod service;

pub use self::{
    body::{MessageBody, StreamedBody},
    future::MessageLimitFuture,
    layer::MessageLimitLayer,
    service::MessageLimit,
};
