//! What is kept of a response, and what is passed on as it is.

use axum::{
    body::{Body, Bytes},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};

use super::*;

/// Serves a handler at `/work`.
async fn serve_answer(
    layer: IdempotencyLayer,
    answer: impl Fn() -> Response + Clone + Send + Sync + 'static,
) -> (SocketAddr, Count) {
    let count = Count::default();
    let counted = count.clone();
    let handler = move || {
        counted.more();
        let answer = answer();
        async { answer }
    };
    (serve(Router::new().route("/work", post(handler)).layer(layer)).await, count)
}

#[tokio::test]
async fn fields_of_several_lines_come_again_in_order() {
    for stage in stages() {
        for cookies in [false, true] {
            let layer = if cookies { stage.layer().store_cookies() } else { stage.layer() };
            let (address, count) = serve_answer(layer, || {
                let mut response = (StatusCode::CREATED, "made").into_response();
                for (name, value) in [
                    ("set-cookie", "a=1"),
                    ("link", "</1>; rel=x"),
                    ("set-cookie", "b=2"),
                    ("link", "</2>; rel=y"),
                    ("location", "/payments/1"),
                    ("etag", "\"7\""),
                    ("ratelimit", "\"r\";r=1"),
                    ("link", "</3>"),
                ] {
                    response.headers_mut().append(name, value.parse().expect("a value"));
                }
                response
            })
            .await;
            let key = format!("k-{cookies}");
            let (first, again) = (work(address, &key, "7").await, work(address, &key, "7").await);
            let lines = |answer: &Answer, name: &str| {
                let all: Vec<_> = answer.headers.get_all(name).iter().cloned().collect();
                all
            };
            assert_eq!(lines(&again, "link"), ["</1>; rel=x", "</2>; rel=y", "</3>"]);
            for name in ["link", "location", "etag", "content-type", "content-length"] {
                assert_eq!(lines(&first, name), lines(&again, name), "{name}");
            }
            assert_eq!(lines(&first, "set-cookie"), ["a=1", "b=2"]);
            assert_eq!(lines(&again, "set-cookie").len(), if cookies { 2 } else { 0 });
            assert!(again.text("ratelimit").is_none());
            assert_eq!((again.status, &again.body[..], count.get()), (StatusCode::CREATED, &b"made"[..], 1));
        }
    }
}

#[tokio::test]
async fn a_body_of_ten_mebibytes_is_passed_on_whole_and_not_executed_again() {
    for stage in stages() {
        // At once, and in pieces whose number nobody knows.
        for streamed in [false, true] {
            let (address, count) = serve_answer(stage.layer(), move || {
                if !streamed {
                    return vec![b'x'; 10 << 20].into_response();
                }
                let (sender, pieces) = mpsc::channel(2);
                tokio::spawn(async move {
                    for _ in 0..160 {
                        let _ = sender.send(Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 64 << 10]))).await;
                    }
                });
                Body::from_stream(ReceiverStream::new(pieces)).into_response()
            })
            .await;
            let key = format!("k-{streamed}");
            let first = work(address, &key, "7").await;
            assert_eq!((first.status, first.body.len()), (StatusCode::OK, 10 << 20));
            assert_problem(&work(address, &key, "7").await, 409, "not-retained");
            assert_eq!(count.get(), 1);
        }
    }
}

#[tokio::test]
async fn events_arrive_as_they_are_sent_and_are_not_kept() {
    for stage in stages() {
        let (sender, events) = mpsc::unbounded_channel();
        let events = Arc::new(std::sync::Mutex::new(Some(events)));
        let (address, count) = serve_answer(stage.layer(), move || {
            let events = events.lock().expect("no panic").take().expect("one execution");
            let events = tokio_stream::StreamExt::map(UnboundedReceiverStream::new(events), |text: &'static str| {
                Ok::<_, std::convert::Infallible>(Event::default().data(text))
            });
            Sse::new(events).into_response()
        })
        .await;
        let mut body = open(address).await;
        for text in ["one", "two"] {
            sender.send(text).expect("a client");
            let frame = body.frame().await.expect("an event").expect("a body");
            assert_eq!(frame.into_data().expect("data"), format!("data: {text}\n\n"));
        }
        assert_problem(&work(address, "k", "7").await, 409, "not-retained");
        drop(body);
        tokio::time::timeout(ms(5_000), sender.closed()).await.expect("it ends with its client");
        assert_eq!(count.get(), 1);
    }
}

/// Sends a request, and returns the body without waiting for its end.
async fn open(address: SocketAddr) -> hyper::body::Incoming {
    try_open(address).await.expect("an answer")
}

async fn try_open(address: SocketAddr) -> Result<hyper::body::Incoming, hyper_util::client::legacy::Error> {
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
    let (mut parts, body) = request("/work", "k", "7").into_parts();
    parts.uri = format!("http://{address}/work").parse().expect("a URI");
    Ok(client.request(Request::from_parts(parts, body)).await?.into_body())
}

#[tokio::test]
async fn a_body_in_pieces_arrives_on_the_way_and_is_kept_whole() {
    for stage in stages() {
        let (sender, pieces) = mpsc::unbounded_channel();
        let pieces = Arc::new(std::sync::Mutex::new(Some(pieces)));
        let (address, count) = serve_answer(stage.layer(), move || {
            let pieces = pieces.lock().expect("no panic").take().expect("one execution");
            Body::from_stream(UnboundedReceiverStream::new(pieces)).into_response()
        })
        .await;
        let mut body = open(address).await;
        for text in ["one", "two"] {
            sender.send(Ok::<_, std::io::Error>(text)).expect("a client");
            let frame = body.frame().await.expect("a piece").expect("a body");
            assert_eq!(frame.into_data().expect("data"), text);
        }
        assert_problem(&work(address, "k", "7").await, 409, "in-flight");
        // Its client goes, and the rest is kept all the same.
        drop(body);
        sender.send(Ok("three")).expect("it goes on");
        drop(sender);
        let again = async {
            loop {
                let again = work(address, "k", "7").await;
                if again.status != StatusCode::CONFLICT {
                    return again;
                }
            }
        };
        let again = tokio::time::timeout(ms(5_000), again).await.expect("it is stored");
        assert!(replayed(&again) && again.body == "onetwothree", "{again:?}");
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_kept() {
    for stage in stages() {
        let (address, count) = serve_answer(stage.layer(), || {
            let pieces = [Ok("one"), Err(std::io::Error::other("broken"))];
            Body::from_stream(tokio_stream::iter(pieces)).into_response()
        })
        .await;
        // Broken off before its head has left, or after.
        let is_broken = match try_open(address).await {
            Ok(body) => body.collect().await.is_err(),
            Err(_) => true,
        };
        assert!(is_broken, "the client must not take it for whole");
        assert_problem(&work(address, "k", "7").await, 409, "not-retained");
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test]
async fn in_a_nested_router_the_whole_path_counts() {
    for stage in stages() {
        let nested = Router::new().route("/work", post(|| async { "done" })).layer(stage.layer());
        let address = serve(Router::new().nest("/a", nested.clone()).nest("/b", nested)).await;
        assert_eq!(send(address, None, request("/a/work", "k", "7")).await.body, "done");
        assert!(replayed(&send(address, None, request("/a/work", "k", "7")).await));
        assert_problem(&send(address, None, request("/b/work", "k", "7")).await, 422, "key-used");
    }
}

#[tokio::test]
async fn who_reads_text_is_told_in_text() {
    let (address, _) = serve_work(stages()[0].layer().draft(), ms(0)).await;
    let refused = work_with(address, &[("accept", "text/plain")], "7").await;
    assert_eq!(refused.text("content-type"), Some("text/plain; charset=utf-8"));
    assert!(refused.body.starts_with(b"this operation needs an Idempotency-Key"));
}
