# A Debian root made by debootstrap: what python:3.11-slim is for Docker's users.
FROM scratch
ADD root.tar /
CMD ["/bin/bash"]
