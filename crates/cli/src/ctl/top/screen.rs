//! The terminal: a screen of its own, keys as they are pressed, and all as it was in the end.

use std::fmt::Write as _;
use std::io::{Stdin, Stdout, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGTERM};

use crate::error::CliError;

/// To the other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Keys that end it: Ctrl-C and Ctrl-D come as bytes.
const QUIT: [u8; 4] = [b'q', b'Q', 3, 4];

/// A terminal of which nobody knows the size.
const USUAL: (usize, usize) = (24, 80);

/// Leaves the terminal as it was when it is dropped.
pub(super) struct Screen {
    input: Stdin,
    output: Stdout,
    before: Termios,
    /// A signal has come that ends the process.
    is_ended: Arc<AtomicBool>,
    signals: Vec<SigId>,
}

fn failed(attempt: &'static str) -> impl FnOnce(std::io::Error) -> CliError {
    move |source| CliError::System { attempt, source }
}

impl Screen {
    pub(super) fn open() -> Result<Self, CliError> {
        let input = stdin();
        let asked = tcgetattr(&input).map_err(std::io::Error::from);
        let before = asked.map_err(failed("asking how the terminal is set"))?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let register = |signal| signal_hook::flag::register(signal, Arc::clone(&is_ended));
        let signals = [SIGTERM, SIGHUP].into_iter().map(register);
        let signals = signals.collect::<Result<_, _>>();
        let mut screen = Self {
            input,
            output: stdout(),
            signals: signals.map_err(failed("listening to signals"))?,
            is_ended,
            before,
        };
        let mut raw = screen.before.clone();
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        let set = tcsetattr(&screen.input, OptionalActions::Now, &raw);
        set.map_err(std::io::Error::from)
            .map_err(failed("setting the terminal"))?;
        screen.write(ENTER)?;
        Ok(screen)
    }

    fn write(&mut self, text: &str) -> Result<(), CliError> {
        let written = self.output.write_all(text.as_bytes());
        let written = written.and_then(|()| self.output.flush());
        written.map_err(CliError::Output)
    }

    /// Shows a text, as much of it as there is room for.
    pub(super) fn draw(&mut self, text: &str) -> Result<(), CliError> {
        let size = tcgetwinsize(&self.output).ok();
        let size = size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
        let size = size.filter(|(rows, columns)| *rows > 0 && *columns > 0);
        self.write(&frame(text, size.unwrap_or(USUAL)))
    }

    /// Waits so long. Returns whether somebody has ended it.
    pub(super) fn is_left_within(&mut self, time: Duration) -> Result<bool, CliError> {
        let until = Instant::now() + time;
        loop {
            if self.is_ended.load(Ordering::Relaxed) {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut descriptors = [PollFd::new(&self.input, PollFlags::IN)];
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut descriptors, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed("waiting for a key")(error.into())),
            }
            let mut keys = [0; 64];
            match rustix::io::read(&self.input, &mut keys) {
                // The terminal is gone.
                Ok(0) | Err(Errno::IO) => return Ok(true),
                Ok(count) if keys[..count].iter().any(|key| QUIT.contains(key)) => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed("reading a key")(error.into())),
            }
        }
    }
}

/// What shows a text on a screen of so many rows and columns.
fn frame(text: &str, (rows, columns): (usize, usize)) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shown = match lines.len() <= rows {
        true => lines.len(),
        false => rows - 1,
    };
    let mut frame = "\x1b[H".to_owned();
    for (at, line) in lines[..shown].iter().enumerate() {
        let line: String = line.chars().take(columns).collect();
        let end = if at + 1 == rows { "" } else { "\r\n" };
        let _ = write!(frame, "{line}\x1b[K{end}");
    }
    if shown < lines.len() {
        let more: String = format!("({} lines more)", lines.len() - shown);
        let more: String = more.chars().take(columns).collect();
        let _ = write!(frame, "{more}\x1b[K");
    }
    frame + "\x1b[J"
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.write(LEAVE);
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.before);
        for signal in self.signals.drain(..) {
            signal_hook::low_level::unregister(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_screen() {
        let shown = frame("abc\nd\n", (2, 2));
        assert_eq!(shown, "\x1b[Hab\x1b[K\r\nd\x1b[K\x1b[J");
        let shown = frame("a\nb\nc\nd\n", (3, 80));
        assert_eq!(
            shown,
            "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n(2 lines more)\x1b[K\x1b[J"
        );
        assert_eq!(frame("a\nb", (1, 9)), "\x1b[H(2 lines \x1b[K\x1b[J");
    }
}
