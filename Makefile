# The same commands for those whose fingers type make; dev.py does the work.
.PHONY: demo check test requirements mutants chaos walk bench lock

demo check test requirements mutants chaos walk bench lock:
	@python3 dev.py $@
