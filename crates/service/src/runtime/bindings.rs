//! What applications have asked the server of a route of its methods, and what it has said: by that they write their
//! messages. Another session is as good as theirs if its server says the same.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Questions of one route that are remembered, at most, and the bytes of one of them: a new session is asked all.
const MAX_QUESTIONS: usize = 128;
const MAX_QUESTION: usize = 512;

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    /// The hashes of the answers.
    answers: HashMap<Box<[u8]>, u64>,
    /// Some are not remembered.
    is_full: bool,
}

impl Bindings {
    /// A question that is handed on, to remember it with its answer.
    pub(super) fn question(&mut self, body: &[u8]) -> Option<Box<[u8]>> {
        let fits = body.len() <= MAX_QUESTION;
        self.is_full |= !fits;
        fits.then(|| body.into())
    }

    /// A question was answered.
    pub(super) fn insert(&mut self, question: Box<[u8]>, answer: &[u8], by: &RandomState) {
        if let Some(known) = self.answers.get_mut(&question) {
            *known = by.hash_one(answer);
        } else if self.answers.len() < MAX_QUESTIONS {
            self.answers.insert(question, by.hash_one(answer));
        } else {
            self.is_full = true;
        }
    }

    /// All questions. None: there were too many.
    pub(super) fn questions(&self) -> Option<Vec<Box<[u8]>>> {
        (!self.is_full).then(|| self.answers.keys().cloned().collect())
    }

    /// Whether this is the answer that the application has.
    pub(super) fn is_same(&self, question: &[u8], answer: &[u8], by: &RandomState) -> bool {
        self.answers.get(question) == Some(&by.hash_one(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_answer_is_known_and_too_many_questions_are() {
        let (mut bindings, by) = (Bindings::default(), RandomState::new());
        let question = bindings.question(b"q").expect("it is short");
        bindings.insert(question.clone(), b"a", &by);
        assert_eq!(bindings.questions(), Some(vec![question]));
        assert!(bindings.is_same(b"q", b"a", &by) && !bindings.is_same(b"q", b"b", &by));
        assert!(!bindings.is_same(b"r", b"a", &by));
        for number in 0..100_u8 {
            bindings.insert([number; MAX_QUESTION].as_slice().into(), b"a", &by);
        }
        bindings.insert(b"q".as_slice().into(), b"b", &by);
        assert!(bindings.questions().is_some() && bindings.is_same(b"q", b"b", &by));
        for number in 100..200_u8 {
            bindings.insert([number; MAX_QUESTION].as_slice().into(), b"a", &by);
        }
        assert_eq!(bindings.questions(), None);
        let mut bindings = Bindings::default();
        assert_eq!(bindings.question(&[0; MAX_QUESTION + 1]), None);
        assert_eq!(bindings.questions(), None);
    }
}
