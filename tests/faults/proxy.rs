use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::sleep,
};

/// Stands between a limiter and its server, and does what networks do.
pub(crate) struct Proxy {
    port: u16,
    weather: Arc<Weather>,
}

struct Weather {
    target: AtomicU16,
    mood: AtomicU8,
    delay_ms: AtomicU64,
    /// Whether the reply to the next script call is cut in its middle.
    cut_reply: AtomicBool,
    /// Whether what the server says next is swallowed, and nothing else.
    lose_reply: AtomicBool,
    /// Raised when all connections are to be cut.
    cuts: watch::Sender<u64>,
}

/// What becomes of bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    Passes,
    /// Both ways are swallowed.
    Swallows,
    /// Requests pass, replies are swallowed.
    DropsReplies,
    /// The server's end of the connection is closed for writing after the next request; replies are swallowed.
    HalfCloses,
}

impl Proxy {
    /// Starts in front of a port, and runs as long as its runtime.
    pub(crate) async fn start(target: u16) -> Self {
        Self::start_at(("127.0.0.1", 0), target).await
    }

    pub(crate) async fn start_at(at: (&str, u16), target: u16) -> Self {
        let listener = TcpListener::bind(at).await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let weather = Arc::new(Weather {
            target: AtomicU16::new(target),
            mood: AtomicU8::new(0),
            delay_ms: AtomicU64::new(0),
            cut_reply: AtomicBool::new(false),
            lose_reply: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
        });
        let shared = Arc::clone(&weather);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(join(client, Arc::clone(&shared)));
            }
        });
        Self { port, weather }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn be(&self, mood: Mood) {
        self.weather.mood.store(mood as u8, Ordering::SeqCst);
    }

    /// Leads new connections to another server.
    #[allow(dead_code)] // Not every test replaces its server.
    pub(crate) fn lead_to(&self, target: u16) {
        self.weather.target.store(target, Ordering::SeqCst);
    }

    /// Delays each reply by so much.
    pub(crate) fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).expect("a short time");
        self.weather.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// Cuts all connections that there are.
    pub(crate) fn cut(&self) {
        self.weather.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Swallows one reply; the connection goes on.
    pub(crate) fn lose_next_reply(&self) {
        self.weather.lose_reply.store(true, Ordering::SeqCst);
    }

    /// Lets half of the reply to the next script call pass, and cuts its connection then. What else a client asks, like
    /// a Cluster's map after the last cut, is answered.
    pub(crate) fn cut_next_reply(&self) {
        self.weather.cut_reply.store(true, Ordering::SeqCst);
    }
}

impl Weather {
    fn is(&self, mood: Mood) -> bool {
        self.mood.load(Ordering::SeqCst) == mood as u8
    }
}

async fn join(client: TcpStream, weather: Arc<Weather>) {
    let mut cuts = weather.cuts.subscribe();
    let target = weather.target.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let cut_reply = AtomicBool::new(false);
    tokio::select! {
        () = requests(from_client, to_server, &weather, &cut_reply) => {}
        () = replies(from_server, to_client, &weather, &cut_reply) => {}
        _ = cuts.changed() => {}
    }
}

async fn requests(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, weather: &Weather, cut_reply: &AtomicBool) {
    let mut bytes = [0; 16_384];
    while let Ok(read @ 1..) = client.read(&mut bytes).await {
        if weather.is(Mood::Swallows) {
            continue;
        }
        let calls_script = bytes[..read].windows(SCRIPT_CALL.len()).any(|word| word == SCRIPT_CALL);
        if calls_script && weather.cut_reply.swap(false, Ordering::SeqCst) {
            cut_reply.store(true, Ordering::SeqCst);
        }
        if server.write_all(&bytes[..read]).await.is_err() {
            return;
        }
        if weather.is(Mood::HalfCloses) {
            let _ = server.shutdown().await;
        }
    }
}

async fn replies(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, weather: &Weather, cut_reply: &AtomicBool) {
    let mut bytes = [0; 16_384];
    while let Ok(read @ 1..) = server.read(&mut bytes).await {
        let delay = weather.delay_ms.load(Ordering::SeqCst);
        if delay > 0 {
            sleep(Duration::from_millis(delay)).await;
        }
        let is_lost = weather.lose_reply.swap(false, Ordering::SeqCst);
        if is_lost || weather.is(Mood::Swallows) || weather.is(Mood::DropsReplies) {
            continue;
        }
        if cut_reply.swap(false, Ordering::SeqCst) {
            let _ = client.write_all(&bytes[..read / 2]).await;
            return;
        }
        if client.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

const SCRIPT_CALL: &[u8] = b"EVALSHA";
