//! Executes the commands of futures: what they want of the event loop.

use starling_call::{Status, header};
use starling_io::PacketTx;
use starling_proto::Msgbuf;

use crate::client::ContinuationId;
use crate::convert::unsent;
use crate::core::Core;
use crate::error::CallError;
use crate::local::Command;

impl<R> Core<R> {
    /// Executes a command.
    pub(crate) fn execute(&mut self, tx: &mut impl PacketTx, command: Command) {
        match command {
            Command::Call {
                key,
                session,
                mut message,
                prefix,
                timeout,
            } => {
                if !self.local.has_call(key) {
                    self.keep(message);
                    return;
                }
                if timeout.is_some() {
                    header::set_sent(message.head_mut(), self.now_ns);
                }
                let local = ContinuationId::LOCAL;
                match self.issue(tx, session, message, prefix, timeout, local, key) {
                    Ok(call) => {
                        self.local.set_call(key, call);
                        // A buffer for one: the call's own goes to the protocol's pool.
                        let spare = self.proto.buffer();
                        self.keep(spare);
                    }
                    Err(not_made) => {
                        let mut status = Status::from(not_made.error);
                        let is_unsent = [CallError::SessionOver, CallError::Draining];
                        if is_unsent.contains(&not_made.error) {
                            status = unsent(not_made.message).attach_to(status);
                        } else {
                            self.keep(not_made.message);
                        }
                        self.local.finish(key, Err(status));
                    }
                }
            }
            Command::Cancel(call) => {
                self.cancel(tx, call);
            }
            Command::Close(session) => self.close(tx, session),
            Command::Complete(reply, result) => self.complete_with(tx, reply, result),
        }
    }

    /// Keeps a buffer for futures' calls, or for everybody.
    fn keep(&mut self, message: Msgbuf) {
        if let Some(message) = self.local.keep(message) {
            self.proto.recycle(message);
        }
    }
}
