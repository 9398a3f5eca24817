//! How every server describes itself: `starling.reflection.Reflection`.
//!
//! Clients call `Bind` before their first call of a method (see the module `connection`).
//! `starling call` uses the other methods. All of these calls are in protobuf encoding, so that versions
//! of Starling with different reflection still understand each other.

#[rustfmt::skip]
mod generated;

use starling_compress::AlgorithmSet;
use starling_endpoint::Status;
use starling_message::{MethodDescriptor, ServiceDescriptor};

use crate::binding::schema_of;
use crate::message::Request;

pub use generated::*;

/// The method that clients bind with.
pub(crate) fn bind_method() -> &'static MethodDescriptor {
    &REFLECTION_SERVICE.methods[0]
}

/// Implements reflection for the services of one server.
pub(crate) struct Catalog {
    services: Vec<&'static ServiceDescriptor>,
    /// Whether clients may ask for what they do not know.
    is_open: bool,
}

impl Catalog {
    pub(crate) fn new(services: &[&'static ServiceDescriptor], is_open: bool) -> Self {
        let mut services = services.to_vec();
        services.push(&REFLECTION_SERVICE);
        Self { services, is_open }
    }

    /// # Errors
    /// UNIMPLEMENTED if the server does not describe itself, as gRPC's servers without reflection.
    fn check_open(&self) -> Result<(), Status> {
        match self.is_open {
            true => Ok(()),
            false => Err(Status::unimplemented(
                "the server does not describe its services: use the .proto file, or have the \
                 server built with `ServerBuilder::reflection(true)`",
            )),
        }
    }
}

impl Reflection for Catalog {
    fn bind(
        &self,
        request: Request<'_, BindRequest>,
        mut response: BindResponseMut<'_>,
    ) -> Result<(), Status> {
        let request = request.message();
        let path = request.path();
        let service = path
            .strip_prefix('/')
            .and_then(|path| path.split_once('/'))
            .and_then(|(name, _)| self.services.iter().find(|service| service.name == name));
        let Some(service) = service else {
            if !self.is_open {
                return Err(Status::unimplemented(format!(
                    "{path}: the server has no such service"
                )));
            }
            let names: Vec<_> = self.services.iter().map(|service| service.name).collect();
            return Err(Status::unimplemented(format!(
                "{path}: the server has no such service; it has {}",
                names.join(", ")
            )));
        };
        let Some(method) = service.methods.iter().find(|method| method.path == path) else {
            return Err(Status::unimplemented(format!(
                "{path}: the server's {} has no such method",
                service.name
            )));
        };
        if method.request.schema_hash == request.request_hash()
            && method.response.schema_hash == request.response_hash()
        {
            response.set_identical(true);
        } else {
            match self.is_open && !request.this_method() {
                true => response.set_schema(service.schema),
                false => response.set_schema(&schema_of(method).to_bytes()),
            }
        }
        response.set_compression(AlgorithmSet::AVAILABLE.bits().into());
        Ok(())
    }

    fn list_services(
        &self,
        _request: Request<'_, ListServicesRequest>,
        mut response: ListServicesResponseMut<'_>,
    ) -> Result<(), Status> {
        self.check_open()?;
        let mut summaries = response.services_mut();
        for service in &self.services {
            let mut summary = summaries.push_default();
            summary.set_name(service.name);
            summary.set_schema_hash(service.schema_hash);
            let mut methods = summary.methods_mut();
            for method in service.methods {
                methods.push(method.path);
            }
        }
        Ok(())
    }

    fn describe_service(
        &self,
        request: Request<'_, DescribeServiceRequest>,
        mut response: DescribeServiceResponseMut<'_>,
    ) -> Result<(), Status> {
        self.check_open()?;
        let name = request.message().name();
        let service = self.services.iter().find(|service| service.name == name);
        let service = service
            .ok_or_else(|| Status::not_found(format!("the server has no service {name:?}")))?;
        let set = bytes::Bytes::from_static(service.file_descriptor_set);
        response.set_file_descriptor_set_bytes(set);
        Ok(())
    }
}
