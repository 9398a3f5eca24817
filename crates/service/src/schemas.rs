//! The methods that the service knows: by them policies are checked, and read messages.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_endpoint::Status;
use starling_message::method_id;
use starling_message::schema::{Schema, SchemaError};
use starling_policy::PolicyMethod;

/// Methods of each kind, at most.
const MAX_METHODS: usize = 4096;
/// The longest schema that is taken from a server, in bytes: one of a method has some hundred.
const MAX_BYTES: usize = 32 << 10;

/// See the head of this file. Shared by runtimes and the operator's threads.
#[derive(Debug, Default)]
pub struct Schemas(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    /// By id.
    added: HashMap<u32, Arc<PolicyMethod>>,
    /// What servers have described last.
    described: HashMap<u32, Arc<PolicyMethod>>,
}

impl Schemas {
    /// Makes all methods of a schema known, in place of those of the same paths. Returns their paths.
    ///
    /// # Errors
    /// If it is no schema, or there are too many methods.
    pub fn add(&self, schema: &[u8]) -> Result<Vec<String>, Status> {
        let wrong = |error: SchemaError| Status::invalid_argument(format!("the schema: {error}"));
        let schema = Schema::parse(schema).map_err(wrong)?;
        let methods = PolicyMethod::all_of(&schema).map_err(wrong)?;
        let paths = methods.iter().map(|method| method.path().to_owned());
        let paths = paths.collect();
        let mut tables = self.0.lock();
        let ids = methods.iter().map(|method| method_id(method.path()));
        let new = ids.filter(|id| !tables.added.contains_key(id)).count();
        if tables.added.len() + new > MAX_METHODS {
            return Err(Status::resource_exhausted(format!(
                "the service knows {MAX_METHODS} methods at most, and has {} already",
                tables.added.len()
            )));
        }
        for method in methods {
            let id = method_id(method.path());
            tables.added.insert(id, Arc::new(method));
        }
        Ok(paths)
    }

    /// The method of this path that was added.
    pub fn find(&self, path: &str) -> Option<Arc<PolicyMethod>> {
        let tables = self.0.lock();
        let found = tables.added.get(&method_id(path));
        found.filter(|method| method.path() == path).cloned()
    }

    /// The paths of those that were added, in order.
    pub fn paths(&self) -> Vec<String> {
        let tables = self.0.lock();
        let all = tables.added.values().map(|method| method.path().to_owned());
        let mut paths: Vec<_> = all.collect();
        paths.sort_unstable();
        paths
    }

    /// The method of a path by what its server says, which may be known already.
    ///
    /// # Errors
    /// If that is no schema with this method.
    pub fn describe(&self, path: &str, schema: &[u8]) -> Result<Arc<PolicyMethod>, String> {
        if schema.len() > MAX_BYTES {
            return Err(format!(
                "it has {} bytes, and {MAX_BYTES} are taken at most",
                schema.len()
            ));
        }
        let id = method_id(path);
        let is_same = |method: &&Arc<PolicyMethod>| method.bytes() == schema;
        {
            let tables = self.0.lock();
            let mut known = [&tables.added, &tables.described].into_iter();
            let known = known.find_map(|table| table.get(&id).filter(is_same));
            if let Some(method) = known {
                return Ok(Arc::clone(method));
            }
        }
        let parsed = Schema::parse(schema).map_err(|error| error.to_string())?;
        let part = parsed.of_method(path).ok_or("it lacks the method")?;
        let mut methods = PolicyMethod::all_of(&part).map_err(|error| error.to_string())?;
        let method = Arc::new(methods.pop().ok_or("it lacks the method")?);
        let mut tables = self.0.lock();
        if tables.described.len() >= MAX_METHODS && !tables.described.contains_key(&id) {
            // Routes keep those that they use.
            tables.described.clear();
        }
        tables.described.insert(id, Arc::clone(&method));
        Ok(method)
    }
}

#[cfg(test)]
mod tests {
    use starling_message::schema::{MessageSchema, MethodSchema as Method};

    use super::*;

    fn schema(paths: &[&str]) -> Schema {
        let method = |path: &&str| Method {
            path: (*path).to_owned(),
            client_streaming: false,
            server_streaming: false,
            request: 0,
            response: 0,
        };
        Schema {
            messages: vec![MessageSchema {
                name: "a.M".to_owned(),
                fields: Vec::new(),
            }],
            methods: paths.iter().map(method).collect(),
        }
    }

    #[test]
    fn what_servers_describe_is_not_what_was_added() {
        let schemas = Schemas::default();
        let described = schemas.describe("/a.A/B", &schema(&["/a.A/B", "/a.A/C"]).to_bytes());
        let described = described.expect("a schema");
        assert_eq!(described.path(), "/a.A/B");
        assert!(schemas.find("/a.A/B").is_none() && schemas.paths().is_empty());
        let added = schemas.add(&schema(&["/a.A/B", "/a.A/D"]).to_bytes());
        assert_eq!(added, Ok(vec!["/a.A/B".to_owned(), "/a.A/D".to_owned()]));
        let found = schemas.find("/a.A/B").expect("known");
        assert!(!Arc::ptr_eq(&described, &found));
        assert_eq!(schemas.paths(), ["/a.A/B", "/a.A/D"]);
        // The same again is not made again.
        let again = schemas.describe("/a.A/B", &schema(&["/a.A/B"]).to_bytes());
        assert!(Arc::ptr_eq(&again.expect("a schema"), &found));
    }

    #[test]
    fn what_is_no_schema_and_what_is_too_much_is_refused() {
        let schemas = Schemas::default();
        assert!(schemas.add(b"\x07").is_err());
        assert!(schemas.describe("/a.A/B", b"\x07").is_err());
        let other = schema(&["/a.A/C"]).to_bytes();
        let error = schemas.describe("/a.A/B", &other).expect_err("another");
        assert!(error.contains("lacks the method"), "{error}");
        assert!(schemas.describe("/a.A/B", &vec![0; MAX_BYTES + 1]).is_err());
        let many: Vec<String> = (0..MAX_METHODS).map(|n| format!("/a.A/M{n:04}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(schemas.add(&schema(&many).to_bytes()).is_ok());
        assert!(schemas.add(&schema(&many).to_bytes()).is_ok(), "again");
        assert!(schemas.add(&other).is_err(), "one more");
    }
}
