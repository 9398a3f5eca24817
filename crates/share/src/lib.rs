//! One event loop that the threads of a process share: whoever waits for an answer drives it.
//!
//! This crate must not know what the commands and their answers are, nor a device.
//!
//! The right to run the loop is the *driver role*. A caller puts its command into the inbox. If
//! nobody has the role, the caller takes it: it executes all commands that have gathered, takes
//! turns of the loop, and completes the calls of others, until its own call is over. Then it hands
//! the role to another caller that waits, or leaves it free. A caller that finds the role taken leaves its
//! command to the driver and sleeps until its call is over or it is given the role.
//!
//! ```text
//!  caller ── push ──▶ inbox ──▶┌──────────────┐
//!    │                         │  event loop  │◀──▶ device
//!    ├─ role free: drive ─────▶└──────────────┘
//!    └─ role taken: park ◀── call over, or role offered ──┘
//!                                     │ nobody waits
//!                                     ▼
//!                                 background: the keeper thread
//! ```
//!
//! Tasks of an executor leave their commands to one more task, which has the role as a thread does,
//! for one turn at a time.
//!
//! Combining requests behind one leader is FLOCK's (section 4.2) and flat combining's (Hendler,
//! Incze, Shavit, Tzafrir: SPAA 2010). Passing the role on is the leader/followers pattern (POSA 2).
//!
//! No wake-up is lost, for these two reasons:
//! - A caller pushes its command and then tries to take the role. A driver gives the role up and
//!   then looks into the inbox. Both have a full fence in between, so that either the caller gets
//!   the role, or the driver sees the command and finds somebody who drives.
//! - A caller that sleeps has put itself into the list of waiting callers and has then tried to take
//!   the role once more. A driver that gives the role up looks into that list afterwards.
//!
//! | module | holds |
//! |---|---|
//! | `shared_loop` | the role, the inbox, and who is next; `background`: what the keeper does; `reactors`: sleeps that executors do; `yield_policy`: when a thread yields its core first; `handover_check`: finds hand-overs that were lost |
//! | `waiter` | a caller that sleeps until its call is over or it is offered the role |
//! | `driver_task` | a task of an executor that drives for the executor's other tasks |
//! | `simulated` | what a simulator needs to run all of it in threads of its own |
//! | `models` | loom's and shuttle's models of all of it |
//! | `keeper` | the thread for whatever no waiting thread or task drives: timers, abandoned calls, unpolled futures |

#![forbid(unsafe_code)]

mod driver_task;
mod keeper;
#[cfg(all(any(loom, shuttle), test))]
mod models;
mod shared_loop;
#[cfg(not(any(loom, shuttle)))]
mod simulated;
mod sync;
mod waiter;

pub use driver_task::{DriverTask, Reactor, TaskHandle};
pub use shared_loop::{Command, EventLoop, SharedLoop, Step, Watch, is_driving};
#[cfg(not(any(loom, shuttle)))]
pub use simulated::{SimulatedKeeper, SimulatedThread};
pub use waiter::Waiter;
