//! The head of a datagram: its sender, the incarnation that it is for, its version.

use super::{Frames, Protocol};
use crate::wire::{
    DatagramError, HEADER_BYTES, Header, Kind, PREAMBLE_BYTES, Refuse, Reset, ResetReason, Token,
    VERSION, flags, read_preamble, split_frame,
};
use crate::{Event, FrameSink, PeerId, Refusal, Source};

impl Protocol {
    /// Handles the head of a datagram; its frames are for [`Protocol::poll_incoming`]. They must be
    /// handled before the next datagram. `marked`: the datagram has a congestion mark (ECN,
    /// RFC 3168).
    ///
    /// # Errors
    /// The datagram is not for this endpoint. It is counted, and answered if there is an answer.
    #[inline]
    pub fn handle_datagram<'a, S: FrameSink>(
        &mut self,
        now: u64,
        source: Source,
        marked: bool,
        datagram: &'a [u8],
        sink: &mut S,
    ) -> Result<Frames<'a>, DatagramError> {
        self.shared.mark = if marked { flags::ECHO } else { 0 };
        let peer = match source {
            Source::Peer(peer) => {
                if datagram.len() >= PREAMBLE_BYTES + HEADER_BYTES
                    && let Some((preamble, rest)) = datagram.split_first_chunk()
                    && self.shared.peers.hears(peer, preamble, now)
                {
                    let peer = Some(peer);
                    return Ok(Frames { peer, rest });
                }
                // With the peer only, so that no source need be in memory for the usual datagram.
                self.handle_uncommon_head_of_peer(now, peer, datagram, sink)?
            }
            Source::Unknown(_) => self.handle_uncommon_head(now, source, datagram, sink)?,
        };
        let rest = datagram.get(PREAMBLE_BYTES..).unwrap_or_default();
        Ok(Frames { peer, rest })
    }

    #[cold]
    fn handle_uncommon_head_of_peer<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        datagram: &[u8],
        sink: &mut S,
    ) -> Result<Option<PeerId>, DatagramError> {
        let is_unknown = !self.shared.peers.is_referred_to(peer);
        let result = self.handle_uncommon_head(now, Source::Peer(peer), datagram, sink);
        if is_unknown && !self.shared.peers.is_referred_to(peer) {
            // Else whoever sends anything at all would keep a place of the device.
            let released = Event::PeerReleased { peer };
            if self.shared.events.back() != Some(&released) {
                self.shared.events.push_back(released);
            }
        }
        result
    }

    /// Handles the head of a datagram that is not plainly one of a peer for this incarnation. Returns the
    /// peer, if it is one for this incarnation all the same.
    #[cold]
    fn handle_uncommon_head<S: FrameSink>(
        &mut self,
        now: u64,
        source: Source,
        datagram: &[u8],
        sink: &mut S,
    ) -> Result<Option<PeerId>, DatagramError> {
        self.shared.ask_flush();
        match read_preamble(datagram) {
            Ok((token, rest)) => {
                let own = self.shared.own_token(source, sink);
                if let Source::Peer(peer) = source
                    && token == own
                {
                    // It has no session here, or not any more.
                    return Ok(Some(peer));
                }
                self.handle_unknown_token(now, source, (token, own), rest, sink)?;
                Ok(None)
            }
            Err(error) => {
                self.shared.stats.datagrams_dropped += 1;
                if matches!(error, DatagramError::Version(_)) {
                    self.refuse_version(now, source, datagram, sink);
                }
                Err(error)
            }
        }
    }

    /// A datagram from an unknown peer, or with the token of another incarnation, or with none.
    #[cold]
    fn handle_unknown_token<S: FrameSink>(
        &mut self,
        now: u64,
        source: Source,
        (token, own): (Token, Token),
        rest: &[u8],
        sink: &mut S,
    ) -> Result<(), DatagramError> {
        if token.is_none() {
            if let Source::Unknown(_) = source {
                // One datagram in, one datagram out.
                self.shared.flush_answers(now, sink);
            }
            self.shared.other_sender = Some(source);
            return Ok(());
        }
        self.shared.stats.datagrams_dropped += 1;
        // The sender talks to an earlier incarnation, or to this one, which has forgotten it.
        let reset = if own == token {
            first_session(rest).map(|session| (session, ResetReason::UnknownPeer))
        } else {
            // Whatever begins with no frame is not from Starling.
            split_frame(rest)
                .is_ok()
                .then_some((0, ResetReason::Restarted))
        };
        if let Some((session, reason)) = reset {
            let reset = Reset { token, reason };
            self.shared.send_reset(now, source, reset, session, sink);
        }
        Err(match source {
            Source::Peer(_) => DatagramError::StaleToken,
            Source::Unknown(_) => DatagramError::UnknownPeer,
        })
    }

    /// Tells a client of another version which version this endpoint speaks. What is read and written here has the
    /// same layout in all versions from 3 on.
    #[cold]
    fn refuse_version<S: FrameSink>(
        &mut self,
        now: u64,
        source: Source,
        datagram: &[u8],
        sink: &mut S,
    ) {
        let Ok((frame, _)) = split_frame(&datagram[PREAMBLE_BYTES..]) else {
            return;
        };
        if frame.header.kind != Kind::Connect {
            return;
        }
        let Some((token, rest)) = frame.payload.split_first_chunk() else {
            return;
        };
        let token = Token::from_wire(u64::from_le_bytes(*token));
        if let Some((session, _)) = rest.split_first_chunk()
            && let Some(token) = token
        {
            let session = u32::from_le_bytes(*session);
            let (code, detail) = Refusal::Version {
                version: u32::from(VERSION),
            }
            .to_wire();
            let header = Header::control(Kind::Refuse, session);
            let body = Refuse { code, detail }.to_bytes();
            let to = (source, token.preamble());
            self.shared.answer(now, to, header, &body, sink);
        }
    }
}

/// The session that the first frame from a client names. Only clients get a reset: a server has no
/// request to wait for.
fn first_session(mut frames: &[u8]) -> Option<u32> {
    while let Ok((frame, rest)) = split_frame(frames) {
        if frame.header.kind.is_for_a_server() {
            return Some(frame.header.session);
        }
        frames = rest;
    }
    None
}
