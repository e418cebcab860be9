use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use tracing::Level;

/// What the log of a test program has.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Listens from now on, for the whole program: what only one thread listens to may be found to interest nobody by
    /// another.
    pub fn listen(most: Level) -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_max_level(most).with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    /// Returns what was told so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
