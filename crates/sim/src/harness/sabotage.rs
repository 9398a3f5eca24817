//! Deliberate bugs, one per kind of promise: a mutation test runs a scenario with each and wants
//! a checker to complain. They are made at the protocol's edges, so that no code that ships has
//! a switch for them.

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A request is handed to its handler a second time.
    HandlerTwice,
    /// A worker runs a request that another one has claimed.
    ClaimIgnored,
    /// Nothing is ever sent twice: the sender's second copy of a frame is thrown away.
    LostRetransmission,
    /// A request's buffer is not given back.
    LeakedBuffer,
    /// A response reaches the wrong call.
    ExchangedResponse,
    /// A response is cut short by a byte.
    TruncatedResponse,
    /// A session has a credit more than it says it has in use.
    CreditOffByOne,
    /// A session that is closed is forgotten rather than closed.
    LeakedSession,
    /// A session ends, and nobody is told.
    SilentEnd,
    /// A failure is reported twice.
    DoubleFailure,
    /// A call is made without the deadline that it has.
    ForgottenDeadline,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::HandlerTwice,
        Self::ClaimIgnored,
        Self::LostRetransmission,
        Self::LeakedBuffer,
        Self::ExchangedResponse,
        Self::TruncatedResponse,
        Self::CreditOffByOne,
        Self::LeakedSession,
        Self::SilentEnd,
        Self::DoubleFailure,
        Self::ForgottenDeadline,
    ];

    /// What it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::HandlerTwice => "handler-twice",
            Self::ClaimIgnored => "claim-ignored",
            Self::LostRetransmission => "lost-retransmission",
            Self::LeakedBuffer => "leaked-buffer",
            Self::ExchangedResponse => "exchanged-response",
            Self::TruncatedResponse => "truncated-response",
            Self::CreditOffByOne => "credit-off-by-one",
            Self::LeakedSession => "leaked-session",
            Self::SilentEnd => "silent-end",
            Self::DoubleFailure => "double-failure",
            Self::ForgottenDeadline => "forgotten-deadline",
        }
    }

    /// The checker that has to find it, by the name it gives itself.
    pub fn caught_by(self) -> &'static str {
        match self {
            Self::HandlerTwice | Self::ClaimIgnored => "at most once",
            Self::LostRetransmission => "no failure without a cause",
            Self::DoubleFailure | Self::ForgottenDeadline => "every call ends",
            Self::LeakedBuffer => "buffers",
            Self::ExchangedResponse | Self::TruncatedResponse => "content",
            Self::CreditOffByOne => "credits",
            Self::LeakedSession => "nothing remains",
            Self::SilentEnd => "nothing stays stuck",
        }
    }
}
