//! What a server does for single methods: compression of their responses, and the sizes of their messages.

use crate::compression::Compression;
use crate::error::Error;

/// Options of a server's methods, see
/// [`ServerBuilder::method_options`](crate::ServerBuilder::method_options). What is unset is as the service's
/// options say, then those of all services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodOptions {
    /// Responses are compressed so, for callers that take that
    /// ([`CallOptions::accept_compressed`](crate::CallOptions::accept_compressed)). By default they are not.
    pub compression: Option<Compression>,
    /// The most bytes of a request, or of a message of a stream from the client. A longer one is refused with
    /// RESOURCE_EXHAUSTED, before the handler runs. By default one that was compressed has 4 MiB at most, and
    /// others have what the session takes ([`ProtocolConfig::max_message`](crate::ProtocolConfig)).
    ///
    /// A compressed request is unpacked where its handler runs: in a worker, in the server's executor
    /// ([`ServerBuilder::nested_executor`](crate::ServerBuilder::nested_executor)), or else in the dispatch
    /// thread, whose other clients wait meanwhile.
    pub max_request_bytes: Option<usize>,
    /// The same for responses, and messages of a stream to the client. The caller gets RESOURCE_EXHAUSTED,
    /// though the handler ran.
    pub max_response_bytes: Option<usize>,
}

impl MethodOptions {
    /// The same options, with this compression.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self
    }

    /// The same options, with this bound on requests.
    #[must_use]
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.max_request_bytes = Some(bytes);
        self
    }

    /// The same options, with this bound on responses.
    #[must_use]
    pub fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.max_response_bytes = Some(bytes);
        self
    }

    /// Takes what is unset here from other options.
    fn or(self, others: &Self) -> Self {
        Self {
            compression: self.compression.or(others.compression),
            max_request_bytes: self.max_request_bytes.or(others.max_request_bytes),
            max_response_bytes: self.max_response_bytes.or(others.max_response_bytes),
        }
    }
}

/// The options of all methods of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct MethodTable {
    /// By name, as the user has it: `` for all, `kv.Kv`, `kv.Kv/Put`.
    named: Vec<(String, MethodOptions)>,
}

impl MethodTable {
    pub(crate) fn set(&mut self, name: &str, options: MethodOptions) {
        let name = name.trim_start_matches('/').to_owned();
        self.named.push((name, options));
    }

    /// Checks that each name is that of a service or a method.
    pub(crate) fn check<'a>(
        &self,
        mut paths: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), Error> {
        let is_known = |name: &str| name.is_empty() || paths.clone().any(|path| covers(name, path));
        let unknown = self.named.iter().find(|(name, _)| !is_known(name));
        match unknown {
            None => Ok(()),
            Some((name, _)) => Err(Error::UnknownMethod {
                name: name.clone(),
                example: paths.next().unwrap_or_default().to_owned(),
            }),
        }
    }

    /// The options of a method. Those for all services are not for the ones that every server has.
    pub(crate) fn of(&self, path: &str, is_built_in: bool) -> MethodOptions {
        // What was set last comes first.
        let set = || self.named.iter().rev();
        let own = set().filter(|(name, _)| of_method(name, path));
        let of_service = set().filter(|(name, _)| of_service(name, path));
        let of_all = set().filter(|(name, _)| name.is_empty() && !is_built_in);
        own.chain(of_service)
            .chain(of_all)
            .fold(MethodOptions::default(), |found, (_, options)| {
                found.or(options)
            })
    }
}

/// Whether a name, as a user has it, is for this method.
pub(crate) fn covers(name: &str, path: &str) -> bool {
    name.is_empty() || of_method(name, path) || of_service(name, path)
}

fn of_method(name: &str, path: &str) -> bool {
    path.strip_prefix('/') == Some(name)
}

fn of_service(name: &str, path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    service.is_some_and(|(service, _)| service == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 3] = ["/kv.Kv/Get", "/kv.Kv/Put", "/kv.Kvs/Put"];

    fn bounds(request: usize, response: usize) -> MethodOptions {
        MethodOptions::default()
            .max_request_bytes(request)
            .max_response_bytes(response)
    }

    #[test]
    fn a_methods_own_options_come_first_then_its_services_then_those_of_all() {
        let mut table = MethodTable::default();
        table.set("kv.Kv/Put", MethodOptions::default().max_request_bytes(1));
        table.set("/kv.Kv/Put", MethodOptions::default().max_request_bytes(2));
        table.set("kv.Kv", MethodOptions::default().max_response_bytes(30));
        table.set("", bounds(100, 200).compression(Compression::off()));
        assert!(table.check(PATHS.into_iter()).is_ok());
        let off = Compression::off();
        assert_eq!(table.of(PATHS[1], false), bounds(2, 30).compression(off));
        assert_eq!(table.of(PATHS[0], false), bounds(100, 30).compression(off));
        assert_eq!(table.of(PATHS[2], false), bounds(100, 200).compression(off));
        assert_eq!(table.of("/grpc.X/Y", true), MethodOptions::default());
    }

    #[test]
    fn a_name_that_nothing_has_is_an_error() {
        for name in ["kv.K", "kv.Kv/Gets", "Kv/Get", "kv.Kv/"] {
            let mut table = MethodTable::default();
            table.set(name, MethodOptions::default());
            let error = table.check(PATHS.into_iter()).expect_err(name);
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(PATHS[0]), "{text}");
        }
    }
}
